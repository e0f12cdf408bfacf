//! Time, CPU and peak memory of aggregating: `aggregate FOLDER MIB SITES THREADS`. Leaves nothing behind.

use polder_words::SiteName;
use polder_workflow::tensors::{Dtype, Header, Model};
use polder_workflow::{Part, aggregate};
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().ok_or("usage: aggregate FOLDER MIB SITES THREADS");
    let folder = PathBuf::from(next()?);
    let (mib, sites, threads): (u64, usize, usize) = (next()?.parse()?, next()?.parse()?, next()?.parse()?);
    let shape = [mib << 18];
    let header = Header::build([("w", Dtype::F32, &shape[..])])?;
    let mut models = Vec::new();
    for site in 0..sites {
        let path = folder.join(format!("bench-{site}.safetensors"));
        let mut file = File::create(&path)?;
        file.write_all(&header.to_bytes())?;
        #[allow(clippy::cast_precision_loss, reason = "small")]
        let block: Vec<u8> = (0..1 << 18).flat_map(|i| ((i + site) as f32 * 0.001).to_le_bytes()).collect();
        for _ in 0..mib {
            file.write_all(&block)?;
        }
        models.push((SiteName::new(&format!("site-{site}"))?, Model::open(&path)?));
    }
    let parts: Vec<_> =
        models.iter().zip(1..).map(|((site, model), n)| Part { site, model, weight: f64::from(n) }).collect();
    let out = folder.join("bench-out.safetensors");
    for _ in 0..3 {
        let began = Instant::now();
        let bytes = aggregate(&header, &parts, &out, threads)?;
        println!(
            "{mib} MiB x {sites} sites, {threads} threads: {:.3} s, {bytes} bytes",
            began.elapsed().as_secs_f64()
        );
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
    std::fs::remove_file(&out)?;
    for site in 0..sites {
        std::fs::remove_file(folder.join(format!("bench-{site}.safetensors")))?;
    }
    Ok(())
}
