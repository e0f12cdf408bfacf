//! How a measurement becomes an input: by constants that everybody knows.
//!
//! Sites must agree on the scale of their inputs, and none may look at another's rows for it. The data
//! set's published description gives each measurement's range, so that is what all of them use: the square
//! root of the place within the range (most measurements are skewed to the right), from -2 to 2.

/// Number of measurements.
pub const COUNT: usize = 30;

/// Name, smallest and largest value of each measurement, as published.
pub const NAMES: [(&str, f64, f64); COUNT] = [
    ("mean radius", 6.981, 28.11),
    ("mean texture", 9.71, 39.28),
    ("mean perimeter", 43.79, 188.5),
    ("mean area", 143.5, 2501.0),
    ("mean smoothness", 0.05263, 0.1634),
    ("mean compactness", 0.01938, 0.3454),
    ("mean concavity", 0.0, 0.4268),
    ("mean concave points", 0.0, 0.2012),
    ("mean symmetry", 0.106, 0.304),
    ("mean fractal dimension", 0.04996, 0.09744),
    ("radius error", 0.1115, 2.873),
    ("texture error", 0.3602, 4.885),
    ("perimeter error", 0.757, 21.98),
    ("area error", 6.802, 542.2),
    ("smoothness error", 0.001713, 0.03113),
    ("compactness error", 0.002252, 0.1354),
    ("concavity error", 0.0, 0.396),
    ("concave points error", 0.0, 0.05279),
    ("symmetry error", 0.007882, 0.07895),
    ("fractal dimension error", 0.0008948, 0.02984),
    ("worst radius", 7.93, 36.04),
    ("worst texture", 12.02, 49.54),
    ("worst perimeter", 50.41, 251.2),
    ("worst area", 185.2, 4254.0),
    ("worst smoothness", 0.07117, 0.2226),
    ("worst compactness", 0.02729, 1.058),
    ("worst concavity", 0.0, 1.252),
    ("worst concave points", 0.0, 0.291),
    ("worst symmetry", 0.1565, 0.6638),
    ("worst fractal dimension", 0.05504, 0.2075),
];

/// The inputs of a patient's measurements. Values outside of the published range count as its ends.
#[must_use]
pub fn inputs(measured: &[f64; COUNT]) -> [f64; COUNT] {
    let mut inputs = [0.0; COUNT];
    for ((input, value), (_, least, most)) in inputs.iter_mut().zip(measured).zip(NAMES) {
        *input = 4.0 * ((value - least) / (most - least)).clamp(0.0, 1.0).sqrt() - 2.0;
    }
    inputs
}
