use super::*;
use crate::tensors::Dtype;
use proptest::prelude::*;

fn site(n: usize) -> SiteName {
    SiteName::new(&format!("site-{n}")).expect("a good name")
}

/// A model file of the given tensors, each with its bytes.
fn file(tensors: &[(&str, Dtype, Vec<u64>, Vec<u8>)]) -> Vec<u8> {
    let header =
        Header::build(tensors.iter().map(|(n, d, s, _)| (*n, *d, s.as_slice()))).expect("good tensors");
    let mut bytes = header.to_bytes();
    for tensor in header.tensors() {
        let (.., data) = tensors.iter().find(|(name, ..)| *name == &*tensor.name).expect("it is there");
        bytes.extend_from_slice(data);
    }
    bytes
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn mean(files: &[(Vec<u8>, f64)]) -> Result<Vec<u8>, AggregateError> {
    let models: Vec<_> = files.iter().map(|(b, _)| Model::from_bytes(b.clone()).expect("a model")).collect();
    let names: Vec<_> = (0..files.len()).map(site).collect();
    let parts: Vec<_> = models
        .iter()
        .zip(&names)
        .zip(files)
        .map(|((model, site), (_, weight))| Part { site, model, weight: *weight })
        .collect();
    let base = models[0].header();
    let bytes = aggregate_in_memory(base, &parts)?;
    // The same on disk, with several threads: bit for bit.
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("mean.safetensors");
    let size = aggregate(base, &parts, &out, 3)?;
    assert_eq!(size, bytes.len() as u64);
    assert!(std::fs::read(&out).expect("written") == bytes, "file and memory differ");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 1, "nothing else is left");
    Ok(bytes)
}

fn values(file: &[u8], name: &str) -> Vec<u8> {
    let tensors = safetensors::SafeTensors::deserialize(file).expect("the reference reads it");
    tensors.tensor(name).expect("it is there").data().to_vec()
}

#[test]
fn the_weighted_mean_of_two() {
    let one = |v: [f32; 2]| file(&[("w", Dtype::F32, vec![2], f32s(&v))]);
    let got = mean(&[(one([1.0, -2.0]), 1.0), (one([4.0, 2.0]), 3.0)]).expect("a mean");
    assert_eq!(values(&got, "w"), f32s(&[3.25, 1.0]));
}

#[test]
fn weights_at_the_edges_of_the_range() {
    let one = |v: f32| file(&[("w", Dtype::F32, vec![1], f32s(&[v]))]);
    for weight in [f64::MIN_POSITIVE, 5e-324, 1.0, 1e300, f64::MAX] {
        let got = mean(&[(one(1e38), weight), (one(3e38), weight)]).expect("a mean");
        assert_eq!(values(&got, "w"), f32s(&[2e38]), "{weight}");
    }
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(mean(&[(one(1.0), bad)]), Err(AggregateError::Parts(_))), "{bad}");
    }
}

#[test]
fn integers_are_rounded_and_exact_where_all_agree() {
    let one = |count: i64, flag: u8| {
        file(&[
            ("count", Dtype::I64, vec![], count.to_le_bytes().to_vec()),
            ("flag", Dtype::Bool, vec![1], vec![flag]),
        ])
    };
    let huge = i64::MAX - 1;
    let got = mean(&[(one(huge, 1), 0.1), (one(huge, 0), 0.7)]).expect("a mean");
    assert_eq!(values(&got, "count"), huge.to_le_bytes());
    assert_eq!(values(&got, "flag"), [0]);
    let got = mean(&[(one(10, 1), 1.0), (one(11, 0), 1.0), (one(12, 1), 1.0)]).expect("a mean");
    assert_eq!(values(&got, "count"), 11i64.to_le_bytes());
    assert_eq!(values(&got, "flag"), [1]);
    let got = mean(&[(one(i64::MIN, 1), 1.0), (one(i64::MAX, 0), 1.0)]).expect("a mean");
    assert!(
        [(-1i64).to_le_bytes(), 0i64.to_le_bytes()].contains(&values(&got, "count").try_into().expect("8"))
    );
    assert_eq!(values(&got, "flag"), [1], "a tie goes to the first site");
}

#[test]
fn what_may_not_be_added_up_names_site_and_tensor() {
    let good = file(&[("a", Dtype::F32, vec![2], f32s(&[1.0, 2.0])), ("b", Dtype::F64, vec![1], vec![0; 8])]);
    let with = |a: &[f32]| {
        file(&[("a", Dtype::F32, vec![a.len() as u64], f32s(a)), ("b", Dtype::F64, vec![1], vec![0; 8])])
    };
    for (bad, part) in [
        (with(&[1.0, f32::NAN]), r#"site site-1: tensor "a" holds NaN at position 1"#),
        (with(&[f32::NEG_INFINITY, 0.0]), r#"tensor "a" holds an infinite value at position 0"#),
        (with(&[1.0, 2.0, 3.0]), r#"tensor "a" has shape [3] where the model has [2]"#),
        (file(&[("a", Dtype::F32, vec![2], f32s(&[1.0, 2.0]))]), r#"tensor "b" is missing"#),
        (
            file(&[("a", Dtype::F64, vec![2], vec![0; 16]), ("b", Dtype::F64, vec![1], vec![0; 8])]),
            r#"tensor "a" has data type F64 where the model has F32"#,
        ),
        (
            file(&[
                ("a", Dtype::F32, vec![2], f32s(&[0.0; 2])),
                ("b", Dtype::F64, vec![1], vec![0; 8]),
                ("c", Dtype::U8, vec![0], vec![]),
            ]),
            r#"tensor "c" is not one of the model's 2"#,
        ),
    ] {
        let error = mean(&[(good.clone(), 1.0), (bad, 1.0)]).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_bad_value_deep_in_a_large_tensor_is_found_and_nothing_is_left() {
    let mut data = vec![0f32; 300_000];
    let good = file(&[("w", Dtype::F32, vec![300_000], f32s(&data))]);
    data[271_828] = f32::INFINITY;
    let bad = file(&[("w", Dtype::F32, vec![300_000], f32s(&data))]);
    let (good, bad) = (Model::from_bytes(good).expect("a model"), Model::from_bytes(bad).expect("a model"));
    let (a, b) = (site(0), site(1));
    let parts = [Part { site: &a, model: &good, weight: 1.0 }, Part { site: &b, model: &bad, weight: 1.0 }];
    let dir = tempfile::tempdir().expect("a folder");
    let error = aggregate(good.header(), &parts, &dir.path().join("m"), 2).expect_err("refused");
    assert!(error.to_string().contains("position 271828"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 0);
    assert_eq!(
        check::all_finite(&bad).expect("readable").expect_err("refused").to_string(),
        r#"tensor "w" holds an infinite value at position 271828"#
    );
}

#[test]
fn a_file_cut_short_while_it_is_read_is_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m");
    std::fs::write(&path, file(&[("w", Dtype::F32, vec![1000], f32s(&[1.0; 1000]))])).expect("written");
    let model = Model::open(&path).expect("a model");
    File::options().write(true).open(&path).and_then(|f| f.set_len(2000)).expect("cut");
    let a = site(0);
    let parts = [Part { site: &a, model: &model, weight: 1.0 }];
    let error = aggregate_in_memory(model.header(), &parts).expect_err("cut short");
    assert!(matches!(error, AggregateError::Read { .. }), "{error}");
}

/// Finite numbers of a type, drawn from all its bit patterns (of F64 without the very smallest, whose
/// products with a weight lose digits in any order of steps).
fn finite(dtype: Dtype, n: usize, seed: &[u8]) -> Vec<u8> {
    let size = usize::try_from(dtype.size()).expect("small");
    let mut bytes: Vec<u8> = (0..n * size)
        .map(|i| seed[i % seed.len()].wrapping_mul(31).wrapping_add(seed[(i * 7 + 3) % seed.len()]))
        .collect();
    for value in bytes.chunks_exact_mut(size) {
        if dtype == Dtype::Bool {
            value[0] &= 1;
        } else if !check::is_finite(dtype, value) || (dtype == Dtype::F64 && value[7] & 0x7f < 8) {
            value.fill(0);
        }
    }
    bytes
}

/// One value at a time, as the definition says.
fn naive(dtype: Dtype, parts: &[(Vec<u8>, f64)]) -> Vec<u8> {
    let size = usize::try_from(dtype.size()).expect("small");
    let alone = [(parts[0].0.clone(), 1.0)];
    let parts = if parts.len() == 1 { &alone[..] } else { parts };
    let total: f64 = parts.iter().map(|(_, w)| w).sum();
    let mut out = Vec::new();
    for i in 0..parts[0].0.len() / size {
        let at = |p: &(Vec<u8>, f64)| p.0[i * size..(i + 1) * size].to_vec();
        let sum = |read: &dyn Fn(Vec<u8>) -> f64| {
            let mut parts = parts.iter();
            let first = parts.next().map_or(0.0, |p| p.1 * read(at(p)));
            parts.fold(first, |sum, p| sum + p.1 * read(at(p))) / total
        };
        let bytes = |v: Vec<u8>| <[u8; 8]>::try_from(v).expect("8 bytes");
        #[allow(clippy::cast_possible_truncation, reason = "the rounding that is meant")]
        match dtype {
            Dtype::F64 => out.extend(sum(&|v| f64::from_le_bytes(bytes(v))).to_le_bytes()),
            Dtype::F32 => out.extend(
                (sum(&|v| f32::from_le_bytes(v.try_into().expect("4 bytes")).into()) as f32).to_le_bytes(),
            ),
            _ => unreachable!("only asked for these"),
        }
    }
    out
}

proptest! {
    #[test]
    fn as_the_naive_mean_bit_for_bit(
        double: bool,
        n in 1usize..300,
        seeds in prop::collection::vec((prop::collection::vec(any::<u8>(), 8..32), 1e-3f64..1e6), 1..5),
    ) {
        let dtype = if double { Dtype::F64 } else { Dtype::F32 };
        let parts: Vec<_> = seeds.iter().map(|(seed, weight)| (finite(dtype, n, seed), *weight)).collect();
        let files: Vec<_> = parts.iter().map(|(data, w)| (file(&[("w", dtype, vec![n as u64], data.clone())]), *w)).collect();
        let got = mean(&files).expect("a mean");
        let want = naive(dtype, &parts);
        // Where the sum itself leaves the range of f64, neither is a number.
        prop_assume!(check::is_finite(dtype, &want));
        prop_assert_eq!(values(&got, "w"), want);
    }

    #[test]
    fn the_mean_of_equals_is_the_value_for_every_type(
        which in 0usize..13, n in 1usize..200, seed in prop::collection::vec(any::<u8>(), 8..32),
        weights in prop::collection::vec(1e-3f64..1e6, 1..5),
    ) {
        let dtype = Dtype::ALL[which].0;
        // One digit may be lost to the weights in F64 itself.
        prop_assume!(dtype != Dtype::F64 || weights.iter().all(|w| *w == weights[0]));
        let data = finite(dtype, n, &seed);
        let files: Vec<_> = weights.iter().map(|w| (file(&[("w", dtype, vec![n as u64], data.clone())]), *w)).collect();
        prop_assert_eq!(values(&mean(&files).expect("a mean"), "w"), data);
    }

    #[test]
    fn many_small_tensors_in_another_order_add_up_the_same(
        sizes in prop::collection::vec(0u64..40, 1..30), seed in prop::collection::vec(any::<u8>(), 8..32),
    ) {
        let names: Vec<_> = (0..sizes.len()).map(|i| format!("t{i}")).collect();
        let tensors: Vec<_> = names.iter().zip(&sizes).enumerate().map(|(i, (name, size))| {
            let dtype = [Dtype::F32, Dtype::F16, Dtype::U8, Dtype::I64][i % 4];
            (name.as_str(), dtype, vec![*size], finite(dtype, usize::try_from(*size).expect("small"), &seed[i % 8..]))
        }).collect();
        let forward = file(&tensors);
        let backward = file(&tensors.iter().rev().cloned().collect::<Vec<_>>());
        let got = mean(&[(forward.clone(), 2.0), (backward, 2.0)]).expect("a mean");
        prop_assert!(got == forward);
    }
}
