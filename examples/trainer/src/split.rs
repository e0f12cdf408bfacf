//! Three sites that see different patients, and the patients nobody trains on.
//!
//! * `hospital-a` does screening: many patients, hardly one is ill.
//! * `hospital-b` is a cancer clinic: fewer patients, most are ill.
//! * `university` sees what others refer to it: the fewest patients, nearly all are ill.
//!
//! No site alone can tell well where the border runs; together they can. Two fifths of the patients are held
//! out: of each diagnosis, and of mild and severe cases, as many as in the whole. The seed decides who goes where.

use crate::data::Row;

/// The sites, with their share of the benign and of the malignant patients that are trained on.
pub const SITES: [(&str, f64, f64); 3] =
    [("hospital-a", 0.97, 0.02), ("hospital-b", 0.018, 0.55), ("university", 0.012, 0.43)];
/// Of so many neighbours in severity, so many are held out.
const HELD_OUT: (usize, usize) = (2, 5);
/// Worst radius, worst texture and worst concave points, which together say most about the diagnosis.
const SEVERITY: [usize; 3] = [20, 21, 27];

/// Who has which patients.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// Each site's name and rows.
    pub sites: Vec<(&'static str, Vec<Row>)>,
    /// Nobody's.
    pub held_out: Vec<Row>,
}

/// Divides the data set.
#[must_use]
pub fn split(seed: u64) -> Split {
    divide(&crate::data::all(), seed)
}

/// Divides the data set after its labels were dealt anew at random: there is nothing left to be learnt,
/// and a model that still did well would have seen what it should not have.
#[must_use]
pub fn split_with_shuffled_labels(seed: u64) -> Split {
    let mut rows = crate::data::all();
    let mut labels: Vec<_> = rows.iter().map(|row| row.malignant).collect();
    Random::new(seed ^ 0x5bd1_e995).shuffle(&mut labels);
    for (row, label) in rows.iter_mut().zip(labels) {
        row.malignant = label;
    }
    divide(&rows, seed)
}

fn divide(rows: &[Row], seed: u64) -> Split {
    let mut random = Random::new(seed);
    let mut split =
        Split { sites: SITES.iter().map(|(name, ..)| (*name, Vec::new())).collect(), held_out: Vec::new() };
    for malignant in [false, true] {
        let mut group: Vec<_> = rows.iter().filter(|row| row.malignant == malignant).cloned().collect();
        group.sort_by(|a, b| severity(a).total_cmp(&severity(b)));
        let mut train = Vec::new();
        for neighbours in group.chunks_mut(HELD_OUT.1) {
            random.shuffle(neighbours);
            let (out, keep) = neighbours.split_at(HELD_OUT.0.min(neighbours.len() - 1));
            split.held_out.extend_from_slice(out);
            train.extend_from_slice(keep);
        }
        random.shuffle(&mut train);
        let (mut from, mut share) = (0, 0.0);
        for ((_, mine), (_, benign, ill)) in split.sites.iter_mut().zip(SITES) {
            share += if malignant { ill } else { benign };
            let to = part(train.len(), share);
            mine.extend_from_slice(&train[from..to]);
            from = to;
        }
    }
    // Mixed again, so that the order of the rows does not give the diagnosis away.
    split.sites.iter_mut().for_each(|(_, rows)| random.shuffle(rows));
    random.shuffle(&mut split.held_out);
    split
}

fn severity(row: &Row) -> f64 {
    let inputs = crate::features::inputs(&row.measured);
    SEVERITY.iter().map(|i| inputs[*i]).sum()
}

fn part(whole: usize, share: f64) -> usize {
    #[allow(clippy::cast_possible_truncation, reason = "a share of a few hundred rows")]
    let part = (whole as f64 * share).round() as usize;
    part.min(whole)
}

/// SplitMix64: small, and the same on every machine and in every version.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.next_bits() % (last as u64 + 1);
            items.swap(last, usize::try_from(other).expect("below the length"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_patient_has_one_place_and_the_shares_are_uneven() {
        let split = split(7);
        let sizes: Vec<_> = split.sites.iter().map(|(_, rows)| rows.len()).collect();
        let ill: Vec<_> =
            split.sites.iter().map(|(_, rows)| rows.iter().filter(|r| r.malignant).count()).collect();
        assert_eq!((sizes, ill, split.held_out.len()), (vec![211, 72, 58], vec![3, 69, 55], 228));
        let mut rows: Vec<_> =
            split.sites.into_iter().flat_map(|(_, rows)| rows).chain(split.held_out).collect();
        let mut all = crate::data::all();
        let key = |row: &Row| row.measured.map(f64::to_bits);
        rows.sort_by_key(key);
        all.sort_by_key(key);
        assert_eq!(rows, all);
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(split(3), split(3));
        assert_ne!(split(3), split(4));
    }
}
