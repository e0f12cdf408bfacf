//! A model from a site is foreign input: whatever it is, it is refused in words or added up.

#![no_main]

use polder_words::SiteName;
use polder_workflow::aggregate::aggregate_in_memory;
use polder_workflow::tensors::check::all_finite;
use polder_workflow::{Model, Part};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(model) = Model::from_bytes(data.to_vec()) else { return };
    let finite = all_finite(&model).expect("it is in memory");
    let site = SiteName::server();
    let parts = [1.0, 2.5].map(|weight| Part { site: &site, model: &model, weight });
    let mean = aggregate_in_memory(model.header(), &parts);
    assert_eq!(mean.is_ok(), finite.is_ok());
    if let Ok(mean) = mean {
        assert_eq!(mean.len(), data.len());
        // One model alone is itself, bit for bit.
        assert_eq!(aggregate_in_memory(model.header(), &parts[..1]).expect("it was"), data);
    }
});
