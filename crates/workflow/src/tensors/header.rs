//! The header of a safetensors file: what tensors there are and where.
//!
//! ```text
//! | 8 bytes: n, little endian | n bytes: JSON object, padded with spaces | data |
//! ```
//! Refused, besides what is not of this form: a header above [`MAX_HEADER`], a name that comes twice, an
//! unknown data type, sizes that do not follow from the shape, and offsets that leave a gap, overlap or
//! end elsewhere than the file.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// Largest accepted header: room for tens of thousands of tensors, small enough to be held in memory.
pub const MAX_HEADER: u64 = 8 << 20;
/// Longest accepted tensor name, in bytes.
pub const MAX_NAME: usize = 1024;
/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 64;

/// The type of a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the format's own")]
pub enum Dtype {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Dtype {
    /// Every type, with its spelling in the header and its size in bytes.
    pub const ALL: [(Self, &'static str, u64); 13] = [
        (Self::Bool, "BOOL", 1),
        (Self::U8, "U8", 1),
        (Self::I8, "I8", 1),
        (Self::U16, "U16", 2),
        (Self::I16, "I16", 2),
        (Self::U32, "U32", 4),
        (Self::I32, "I32", 4),
        (Self::U64, "U64", 8),
        (Self::I64, "I64", 8),
        (Self::F16, "F16", 2),
        (Self::Bf16, "BF16", 2),
        (Self::F32, "F32", 4),
        (Self::F64, "F64", 8),
    ];

    fn row(self) -> (Self, &'static str, u64) {
        // ALL is in the order of declaration; a test holds it to that.
        Self::ALL[self as usize]
    }

    /// As spelt in a header.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().1
    }

    /// Bytes of one value.
    #[must_use]
    pub fn size(self) -> u64 {
        self.row().2
    }

    /// Whether values can be NaN or infinite.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, name, _)| *name == word).map(|(dtype, ..)| *dtype)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One tensor: its place is `start..end` of the data that follows the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: Box<str>,
    /// Type of its values.
    pub dtype: Dtype,
    /// Its dimensions; empty for a scalar.
    pub shape: Box<[u64]>,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl Tensor {
    /// Number of values.
    #[must_use]
    pub fn elements(&self) -> u64 {
        (self.end - self.start) / self.dtype.size()
    }
}

/// A header that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    raw: Vec<u8>,
    /// In the order of their place.
    tensors: Vec<Tensor>,
    /// Indices into `tensors`, by name.
    by_name: Vec<u32>,
    data_len: u64,
}

/// Why bytes are no safetensors file, or not one that is accepted here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Shorter than its own header says.
    #[error("no safetensors file: {size} bytes are too few for a header of {header} bytes")]
    Short {
        /// Bytes there are.
        size: u64,
        /// Bytes the header should have.
        header: u64,
    },
    /// The header is larger than allowed.
    #[error("the safetensors header has {found} bytes; allowed are {MAX_HEADER}")]
    Large {
        /// What the first eight bytes say.
        found: u64,
    },
    /// The header is not the JSON it should be.
    #[error("the safetensors header is malformed: {why}")]
    Malformed {
        /// What is wrong and where.
        why: String,
    },
    /// One tensor's entry contradicts itself.
    #[error("tensor {name:?}: {why}")]
    Tensor {
        /// Whose.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The tensors do not cover the data.
    #[error("the safetensors file holds {found} bytes of data where its header says {said}")]
    Size {
        /// Bytes after the header.
        found: u64,
        /// Sum of the tensors.
        said: u64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                let mut metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        if std::mem::replace(&mut metadata, true) {
                            return Err(A::Error::custom("__metadata__ comes twice"));
                        }
                        map.next_value::<Metadata>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }
        from.deserialize_map(Reader)
    }
}

/// The format allows text to text only; checked and passed over.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Metadata;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                while map.next_key::<IgnoredAny>()?.is_some() {
                    map.next_value::<String>()?;
                }
                Ok(Metadata)
            }
        }
        from.deserialize_map(Reader)
    }
}

impl Header {
    /// Reads a header from the bytes after the length and checks it against the size of the file.
    ///
    /// # Errors
    /// See the module: anything that is not exactly a safetensors header for a file of this size.
    pub fn parse(raw: Vec<u8>, file_size: u64) -> Result<Self, HeaderError> {
        let header = raw.len() as u64;
        if header > MAX_HEADER {
            return Err(HeaderError::Large { found: header });
        }
        let Some(data_len) = file_size.checked_sub(8 + header) else {
            return Err(HeaderError::Short { size: file_size, header });
        };
        let malformed = |why: String| HeaderError::Malformed { why };
        if raw.first() != Some(&b'{') {
            return Err(malformed("it does not begin with '{'".to_owned()));
        }
        let Entries(entries) = serde_json::from_slice(&raw)
            // An error repeats what it found, which may be as long as the header.
            .map_err(|error| malformed(error.to_string().chars().take(300).collect()))?;
        let mut tensors =
            entries.into_iter().map(|(name, entry)| entry.check(name)).collect::<Result<Vec<_>, _>>()?;
        tensors.sort_by_key(|tensor| (tensor.start, tensor.end));
        let mut at = 0;
        for tensor in &tensors {
            if tensor.start != at {
                let how =
                    if tensor.start < at { "overlaps the tensor before" } else { "leaves a gap before it" };
                return Err(tensor.wrong(format!("its place {}..{} {how}", tensor.start, tensor.end)));
            }
            at = tensor.end;
        }
        if at != data_len {
            return Err(HeaderError::Size { found: data_len, said: at });
        }
        let mut by_name: Vec<u32> = (0..).take(tensors.len()).collect();
        by_name.sort_by(|a, b| tensors[*a as usize].name.cmp(&tensors[*b as usize].name));
        for pair in by_name.windows(2) {
            if tensors[pair[0] as usize].name == tensors[pair[1] as usize].name {
                return Err(tensors[pair[0] as usize].wrong("comes twice".to_owned()));
            }
        }
        Ok(Self { raw, tensors, by_name, data_len })
    }

    /// How many bytes of header follow the first eight of a file.
    ///
    /// # Errors
    /// When they are more than allowed or than the file has.
    pub fn length(first: [u8; 8], file_size: u64) -> Result<usize, HeaderError> {
        let found = u64::from_le_bytes(first);
        if found > MAX_HEADER {
            return Err(HeaderError::Large { found });
        }
        if file_size < 8 + found {
            return Err(HeaderError::Short { size: file_size, header: found });
        }
        usize::try_from(found).map_err(|_| HeaderError::Large { found })
    }

    /// Lays out tensors one after the other, the widest types first so that each lies aligned.
    ///
    /// # Errors
    /// When a name comes twice or a limit is passed.
    pub fn build<'a>(
        tensors: impl IntoIterator<Item = (&'a str, Dtype, &'a [u64])>,
    ) -> Result<Self, HeaderError> {
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        tensors.sort_by_key(|(_, dtype, _)| std::cmp::Reverse(dtype.size()));
        let mut object = serde_json::Map::new();
        let mut at: u64 = 0;
        for (name, dtype, shape) in tensors {
            let wrong = |why: &str| HeaderError::Tensor { name: name.to_owned(), why: why.to_owned() };
            let bytes = shape
                .iter()
                .try_fold(dtype.size(), |bytes, n| bytes.checked_mul(*n))
                .ok_or_else(|| wrong("its size is beyond 64 bits"))?;
            let end = at.checked_add(bytes).ok_or_else(|| wrong("its place is beyond 64 bits"))?;
            let entry =
                serde_json::json!({"dtype": dtype.as_str(), "shape": shape, "data_offsets": [at, end]});
            if object.insert(name.to_owned(), entry).is_some() {
                return Err(wrong("comes twice"));
            }
            at = end;
        }
        let mut raw = serde_json::Value::Object(object).to_string().into_bytes();
        raw.resize(raw.len().next_multiple_of(8), b' ');
        let size = 8 + raw.len() as u64 + at;
        Self::parse(raw, size)
    }

    /// The tensors, in the order of their place.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// A tensor by name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let found = self.by_name.binary_search_by(|i| (*self.tensors[*i as usize].name).cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[found] as usize])
    }

    /// Where the data begins in the file.
    #[must_use]
    pub fn data_at(&self) -> u64 {
        8 + self.raw.len() as u64
    }

    /// Bytes of data.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        self.data_len
    }

    /// Bytes of the whole file.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.data_at() + self.data_len
    }

    /// The length and the header itself, as they stand at the beginning of the file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + self.raw.len());
        bytes.extend_from_slice(&(self.raw.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&self.raw);
        bytes
    }
}

impl Entry {
    fn check(self, name: String) -> Result<Tensor, HeaderError> {
        let wrong = |why: String| {
            let name = name.chars().take(200).collect();
            Err(HeaderError::Tensor { name, why })
        };
        if name.len() > MAX_NAME {
            return wrong(format!("its name has {} bytes; allowed are {MAX_NAME}", name.len()));
        }
        let Some(dtype) = Dtype::from_word(&self.dtype) else {
            let known: Vec<_> = Dtype::ALL.iter().map(|(_, word, _)| *word).collect();
            let found: String = self.dtype.chars().take(40).collect();
            return wrong(format!(
                "data type {found:?} cannot be averaged; allowed are {}",
                known.join(", ")
            ));
        };
        if self.shape.len() > MAX_RANK {
            return wrong(format!("it has {} dimensions; allowed are {MAX_RANK}", self.shape.len()));
        }
        let (start, end) = self.data_offsets;
        let bytes = self.shape.iter().try_fold(dtype.size(), |bytes, n| bytes.checked_mul(*n));
        if bytes.is_none() || end.checked_sub(start) != bytes {
            return wrong(format!("its place {start}..{end} does not fit {dtype} of shape {:?}", self.shape));
        }
        Ok(Tensor { name: name.into(), dtype, shape: self.shape.into(), start, end })
    }
}

impl Tensor {
    fn wrong(&self, why: String) -> HeaderError {
        HeaderError::Tensor { name: self.name.chars().take(200).collect(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(json: &str, data: u64) -> Result<Header, String> {
        Header::parse(json.as_bytes().to_vec(), 8 + json.len() as u64 + data).map_err(|e| e.to_string())
    }

    #[test]
    fn types_stand_in_the_table_in_their_own_order() {
        for (i, (dtype, word, _)) in Dtype::ALL.iter().enumerate() {
            assert_eq!(*dtype as usize, i);
            assert_eq!(Dtype::from_word(word), Some(*dtype));
        }
    }

    #[test]
    fn hostile_headers_are_refused_with_the_reason() {
        let t = |start: u64, end: u64| {
            format!(r#"{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}"#, end - start)
        };
        for (json, data, part) in [
            ("[]".to_owned(), 0, "does not begin with '{'"),
            ("{".to_owned(), 0, "EOF"),
            (r#"{"a":3}"#.to_owned(), 0, "invalid type"),
            (format!(r#"{{"a":{},"a":{}}}"#, t(0, 1), t(1, 2)), 2, r#"tensor "a": comes twice"#),
            (format!(r#"{{"a":{},"b":{}}}"#, t(0, 2), t(1, 3)), 3, "overlaps"),
            (format!(r#"{{"a":{},"b":{}}}"#, t(0, 2), t(0, 2)), 2, "overlaps"),
            (format!(r#"{{"a":{},"b":{}}}"#, t(0, 1), t(2, 3)), 3, "leaves a gap"),
            (format!(r#"{{"a":{}}}"#, t(1, 2)), 2, "leaves a gap"),
            (format!(r#"{{"a":{}}}"#, t(0, 2)), 3, "3 bytes of data where its header says 2"),
            (format!(r#"{{"a":{}}}"#, t(0, 2)), 1, "1 bytes of data where its header says 2"),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#.to_owned(),
                4,
                "does not fit F32 of shape [2]",
            ),
            (r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[9,3]}}"#.to_owned(), 0, "does not fit"),
            (
                r#"{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}"#.to_owned(),
                0,
                "does not fit",
            ),
            (r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}"#.to_owned(), 0, "invalid value"),
            (
                r#"{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}"#.to_owned(),
                1,
                "cannot be averaged",
            ),
            (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}"#.to_owned(), 1, "unknown field"),
            (
                r#"{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#.to_owned(),
                1,
                "duplicate field",
            ),
            (r#"{"__metadata__":{"a":1}}"#.to_owned(), 0, "invalid type"),
            (r#"{"__metadata__":{},"__metadata__":{}}"#.to_owned(), 0, "comes twice"),
            (format!(r#"{{"{}":{}}}"#, "n".repeat(2000), t(0, 1)), 1, "its name has 2000 bytes"),
        ] {
            let error = parse(&json, data).expect_err(&json);
            assert!(error.contains(part), "{json}: {error}");
        }
        assert!(
            parse(&format!(r#"{{"__metadata__":{{"format":"pt"}},"a":{},"b":{}}}   "#, t(0, 1), t(1, 1)), 1)
                .is_ok()
        );
    }

    #[test]
    fn a_header_longer_than_allowed_or_than_its_file_is_never_read() {
        assert_eq!(Header::length(u64::MAX.to_le_bytes(), 100), Err(HeaderError::Large { found: u64::MAX }));
        assert_eq!(
            Header::length(93u64.to_le_bytes(), 100),
            Err(HeaderError::Short { size: 100, header: 93 })
        );
        assert_eq!(Header::length(92u64.to_le_bytes(), 100), Ok(92));
    }

    prop_compose! {
        fn any_tensors()(list in prop::collection::btree_map("[a-z._0-9]{1,12}", (0..13usize, prop::collection::vec(0u64..5, 0..4)), 0..12))
            -> Vec<(String, Dtype, Vec<u64>)> {
            list.into_iter().map(|(name, (dtype, shape))| (name, Dtype::ALL[dtype].0, shape)).collect()
        }
    }

    proptest! {
        #[test]
        fn what_is_built_reads_back_here_and_in_the_reference_reader(list in any_tensors()) {
            let header = Header::build(list.iter().map(|(n, d, s)| (n.as_str(), *d, s.as_slice()))).expect("names are unique");
            let again = Header::parse(header.to_bytes()[8..].to_vec(), header.file_len());
            prop_assert_eq!(again.as_ref(), Ok(&header));
            for (name, dtype, shape) in &list {
                let tensor = header.get(name).expect("it is there");
                prop_assert_eq!((tensor.dtype, &*tensor.shape), (*dtype, shape.as_slice()));
                prop_assert_eq!(tensor.start % dtype.size(), 0);
            }
            prop_assert!(header.get("never named so").is_none());
            let mut file = header.to_bytes();
            file.resize(usize::try_from(header.file_len()).expect("small"), 0);
            let reference = safetensors::SafeTensors::deserialize(&file).expect("the reference reads it");
            prop_assert_eq!(reference.len(), list.len());
        }

        #[test]
        fn nothing_panics_and_what_is_accepted_covers_the_data(text in r#"\{("(a|b)":\{"dtype":"(U8|F32)","shape":\[[0-9]{0,2}\],"data_offsets":\[[0-9]{1,2},[0-9]{1,2}\]\},?){0,3}\}"#, data in 0u64..64) {
            if let Ok(header) = parse(&text, data) {
                let mut bytes = 0;
                for tensor in header.tensors() {
                    prop_assert_eq!(tensor.start, bytes);
                    bytes = tensor.end;
                }
                prop_assert_eq!(bytes, data);
            }
        }

        #[test]
        fn noise_never_panics(raw in prop::collection::vec(any::<u8>(), 0..200), size in 0u64..400) {
            let _ = Header::parse(raw, size);
        }
    }
}
