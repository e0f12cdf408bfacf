//! A trainer for tests and benchmarks, `polder-test-trainer`: adds a number to every floating-point value of any model, in
//! constant memory, or misbehaves in a chosen way.
//!
//! ```text
//! polder-test-trainer [--do MODE] [--at ROUND] [--only SITE] [--sleep-ms N] [--weight W]
//!                     [--init-bytes N] [--flood-mib N] [--gate FILE] [--add own] [--in FILE] [--out FILE]
//! ```
//! It adds 1; with `--add own` a number of the site's own, so that no two sites send the same bytes.
//! `--do` is one of: ok, fail (exit 7), exit-early (exit 0 before sending), kill (SIGKILL itself), hang,
//! nan, inf, shape, dtype, missing, garbage, bad-path, link, huge-header, zero-weight, flood,
//! bad-utf8, no-newline, die-at-start. It misbehaves in round `--at` (default 1) and, with `--only`, at that
//! site alone. With `--out` it plays one round of `mode: per_round`. With `--gate` it waits, from round `--at` on,
//! until it can lock that file shared: a test holds it exclusively to stop time where it wants to.
//!
//! If `TRACE_FILE` is set, a line `{"launch","attempt","site","round","kind","pid","started","at_ms"}` is
//! appended to that file for each task: `started` is the process's start time in clock ticks since boot.

use crate::session::Session;
use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

#[derive(Debug, Clone)]
struct Options {
    mode: String,
    at: u32,
    only: Option<String>,
    sleep: Duration,
    weight: f64,
    init_bytes: usize,
    flood_mib: usize,
    gate: Option<PathBuf>,
    add_own: bool,
    input: Option<PathBuf>,
    output: Option<PathBuf>,
}

fn options() -> Result<Options> {
    let mut found = Options {
        mode: "ok".to_owned(),
        at: 1,
        only: None,
        sleep: Duration::ZERO,
        weight: 1.0,
        init_bytes: 1024,
        flood_mib: 1024,
        gate: None,
        add_own: false,
        input: None,
        output: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--do" => found.mode = value,
            "--at" => found.at = value.parse()?,
            "--only" => found.only = Some(value),
            "--sleep-ms" => found.sleep = Duration::from_millis(value.parse()?),
            "--weight" => found.weight = value.parse()?,
            "--init-bytes" => found.init_bytes = value.parse()?,
            "--flood-mib" => found.flood_mib = value.parse()?,
            "--gate" => found.gate = Some(value.into()),
            "--add" if value == "own" => found.add_own = true,
            "--in" => found.input = Some(value.into()),
            "--out" => found.output = Some(value.into()),
            _ => bail!("unknown argument {name}"),
        }
    }
    Ok(found)
}

/// The program `polder-test-trainer`, with this process's arguments.
///
/// # Errors
/// When an argument is unknown, or the worker is gone.
pub fn main() -> Result<()> {
    let options = options()?;
    if options.mode == "die-at-start" {
        eprintln!("cannot find my configuration");
        std::process::exit(3);
    }
    if let Some(out) = &options.output {
        // One process a round: the worker says which in the environment.
        let round = std::env::var("POLDER_ROUND").ok().and_then(|round| round.parse().ok()).unwrap_or(0);
        let site = std::env::var("POLDER_SITE").unwrap_or_default();
        trace(round, "train")?;
        let mode = mode_now(&options, &site, round);
        misbehave(mode, &options)?;
        make(mode, options.input.as_deref(), out, &options, &site)?;
        if let Some(path) = std::env::var_os("POLDER_METRICS") {
            std::fs::write(
                path,
                json!({"weight": options.weight, "metrics": {"rounds": round}}).to_string(),
            )?;
        }
        return Ok(());
    }
    let mut session = Session::connect()?;
    while let Some(task) = session.receive()? {
        trace(task.round, &task.kind)?;
        let mode = mode_now(&options, &session.site, task.round);
        std::thread::sleep(options.sleep);
        if let Some(gate) = options.gate.as_ref().filter(|_| task.round >= options.at) {
            let gate = File::open(gate).with_context(|| format!("open the gate {}", gate.display()))?;
            gate.lock_shared()?;
        }
        misbehave(mode, &options)?;
        // Two names in turn: the file of the last round may still be read.
        let mut out = session.out.join(format!("update-{}.safetensors", task.round % 2));
        make(mode, task.model.as_deref(), &out, &options, &session.site)?;
        let weight = if mode == "zero-weight" { 0.0 } else { options.weight };
        match mode {
            "bad-path" => out = "../../../../etc/passwd".into(),
            "link" => {
                let link = session.out.join("link.safetensors");
                std::os::unix::fs::symlink(&out, &link)?;
                out = link;
            }
            _ => {}
        }
        session.send(&out, weight, &[("round", f64::from(task.round))])?;
    }
    Ok(())
}

fn mode_now<'a>(options: &'a Options, site: &str, round: u32) -> &'a str {
    let here = options.only.as_ref().is_none_or(|only| only == site);
    if here && round == options.at { &options.mode } else { "ok" }
}

fn misbehave(mode: &str, options: &Options) -> Result<()> {
    match mode {
        "fail" => {
            eprintln!("about to fail");
            eprintln!("ValueError: the data is not what it was");
            std::process::exit(7);
        }
        "exit-early" => std::process::exit(0),
        "kill" => {
            let pid = std::process::id().to_string();
            std::process::Command::new("kill").args(["-9", &pid]).status()?;
        }
        "hang" => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        "flood" => {
            let line = format!("{}\n", "all work and no play ".repeat(48));
            let block = line.repeat((1 << 20) / line.len() + 1);
            let mut out = std::io::stdout().lock();
            for _ in 0..options.flood_mib {
                out.write_all(&block.as_bytes()[..1 << 20])?;
            }
            out.write_all(b"\nthe last line after the flood\n")?;
            out.flush()?;
        }
        "bad-utf8" => {
            let mut out = std::io::stdout().lock();
            out.write_all(b"caf\xe9 \xff\xfe \xf0\x28\x8c\x28 \x1b[31mred\n")?;
            out.flush()?;
        }
        "no-newline" => {
            let mut out = std::io::stdout().lock();
            out.write_all("x".repeat(3 << 20).as_bytes())?;
            out.flush()?;
        }
        _ => {}
    }
    Ok(())
}

/// Writes the model of this round.
fn make(mode: &str, input: Option<&Path>, out: &Path, options: &Options, site: &str) -> Result<()> {
    match mode {
        "garbage" => return Ok(std::fs::write(out, b"this is no model")?),
        "huge-header" => return Ok(std::fs::write(out, (1u64 << 40).to_le_bytes())?),
        _ => {}
    }
    let Some(input) = input else {
        return init(out, options.init_bytes);
    };
    match mode {
        "shape" => write_f32(out, "w", &[1.0, 2.0, 3.0]),
        "dtype" => rename_in_header(input, out, "\"F32\"", "\"I32\""),
        "missing" => rename_in_header(input, out, "\"w\"", "\"v\""),
        _ => {
            add(if options.add_own { number_of(site) } else { 1.0 }, input, out)?;
            match mode {
                "nan" => overwrite_last(out, f32::NAN),
                "inf" => overwrite_last(out, f32::INFINITY),
                _ => Ok(()),
            }
        }
    }
}

fn init(out: &Path, bytes: usize) -> Result<()> {
    let values = bytes / 4;
    let header =
        json!({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, values * 4]}}).to_string();
    let mut file = File::create(out)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.set_len((8 + header.len() + values * 4) as u64)?;
    Ok(())
}

fn write_f32(out: &Path, name: &str, values: &[f32]) -> Result<()> {
    let entry = json!({"dtype": "F32", "shape": [values.len()], "data_offsets": [0, values.len() * 4]});
    let header = json!({ name: entry }).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    Ok(std::fs::write(out, bytes)?)
}

fn rename_in_header(input: &Path, out: &Path, from: &str, to: &str) -> Result<()> {
    let bytes = std::fs::read(input)?;
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into()?))?;
    let header = std::str::from_utf8(&bytes[8..8 + length])?.replacen(from, to, 1);
    let mut new = (header.len() as u64).to_le_bytes().to_vec();
    new.extend_from_slice(header.as_bytes());
    new.extend_from_slice(&bytes[8 + length..]);
    Ok(std::fs::write(out, new)?)
}

fn overwrite_last(out: &Path, value: f32) -> Result<()> {
    let mut file = OpenOptions::new().write(true).open(out)?;
    file.seek(SeekFrom::End(-4))?;
    Ok(file.write_all(&value.to_le_bytes())?)
}

/// A number for a site, the same each time, exact in every type.
fn number_of(site: &str) -> f32 {
    let sum = site.bytes().fold(7_u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(u16::from(byte)));
    1.0 + f32::from(sum % 4096) / 4096.0
}

/// Copies a model and adds a number to every F32 and F64 value on the way, a MiB at a time.
fn add(number: f32, input: &Path, out: &Path) -> Result<()> {
    let mut from = File::open(input).with_context(|| input.display().to_string())?;
    let mut to = File::create(out).with_context(|| out.display().to_string())?;
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let mut header = vec![0; usize::try_from(u64::from_le_bytes(length))?];
    from.read_exact(&mut header)?;
    to.write_all(&length)?;
    to.write_all(&header)?;
    let header: Value = serde_json::from_slice(&header)?;
    let mut tensors = Vec::new();
    for (name, entry) in header.as_object().ok_or_else(|| anyhow!("no header"))? {
        if name != "__metadata__" {
            let offset = |i: usize| entry["data_offsets"][i].as_u64().ok_or_else(|| anyhow!("no offsets"));
            tensors.push((offset(0)?, offset(1)?, entry["dtype"].as_str().unwrap_or_default().to_owned()));
        }
    }
    tensors.sort();
    let mut buffer = vec![0; 1 << 20];
    for (start, end, dtype) in tensors {
        let mut left = usize::try_from(end - start)?;
        while left > 0 {
            let part = &mut buffer[..left.min(1 << 20)];
            from.read_exact(part)?;
            match dtype.as_str() {
                "F32" => part
                    .as_chunks_mut()
                    .0
                    .iter_mut()
                    .for_each(|v| *v = (f32::from_le_bytes(*v) + number).to_le_bytes()),
                "F64" => part
                    .as_chunks_mut()
                    .0
                    .iter_mut()
                    .for_each(|v| *v = (f64::from_le_bytes(*v) + f64::from(number)).to_le_bytes()),
                _ => {}
            }
            to.write_all(part)?;
            left -= part.len();
        }
    }
    Ok(())
}

fn trace(round: u32, kind: &str) -> Result<()> {
    let Some(path) = std::env::var_os("TRACE_FILE") else { return Ok(()) };
    let launch = std::env::var("POLDER_LAUNCH").unwrap_or_default();
    let attempt = launch.rsplit('.').next().and_then(|attempt| attempt.parse::<u32>().ok());
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Counted after the command's name, which may hold anything: field 22 is the start time.
    let started = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(19)?.parse::<u64>().ok());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
    let line = json!({
        "launch": launch, "attempt": attempt, "site": std::env::var("POLDER_SITE").ok(), "round": round,
        "kind": kind, "pid": std::process::id(), "started": started, "at_ms": u64::try_from(now)?,
    });
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    Ok(file.write_all(format!("{line}\n").as_bytes())?)
}
