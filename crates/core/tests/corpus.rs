//! The seeds of the fuzz targets, and what fuzzing once found, replayed.

#[path = "../../../fuzz/targets.rs"]
mod targets;

use std::path::Path;

#[test]
fn every_seed_of_every_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in targets::TARGETS {
        let folder = corpus.join(name);
        let files =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut seeds = 0;
        for file in files {
            let path = file.expect("a file").path();
            let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            println!("{}", path.display());
            target(&bytes);
            seeds += 1;
        }
        assert!(seeds >= 3, "{name} has seeds");
    }
}
