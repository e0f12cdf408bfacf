//! YAML 1.2 from parser events: one document, no duplicate keys, merge keys, bounded aliases.

use super::plain::{Plain, core_schema, resolve};
use super::{Data, Key, MAX_BYTES, MAX_DEPTH, MAX_VALUES, Map, Value, decode, print};
use crate::error::{Error, Result};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};
use std::collections::HashMap;

const CORE: &str = "tag:yaml.org,2002:";

/// Reads one YAML document. An empty one is null.
///
/// # Errors
/// When it is not one document of YAML within the limits, a key stands twice, a plain scalar means something
/// else to YAML 1.1 readers, or a tag is not one of the core schema.
pub fn from_yaml(file: &str, bytes: &[u8]) -> Result<Value> {
    let text = decode(file, bytes)?;
    printable(file, text)?;
    let mut loader =
        Loader { file, open: Vec::new(), anchors: HashMap::new(), root: None, values: 0, bytes: 0 };
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let line = line(error.marker());
            let at = format!("line {line}");
            Error::new(file, &at, "", "YAML 1.2", error.info()).on_line(line)
        })?;
        if matches!(event, Event::DocumentStart(_)) {
            documents += 1;
            if documents > 1 {
                return Err(loader.fail(&span.start, "", "one document", "holds a second document"));
            }
        }
        loader.take(event, &span.start)?;
    }
    Ok(loader.root.unwrap_or_default())
}

/// Refuses characters that YAML does not allow anywhere in a stream.
fn printable(file: &str, text: &str) -> Result<()> {
    let bad = |c: char| {
        // The last three of those excepted end a line in YAML 1.1 and do not in YAML 1.2.
        !matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
            || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let Some(at) = text.find(bad) else { return Ok(()) };
    let line = u32::try_from(text[..at].matches('\n').count() + 1).unwrap_or(u32::MAX);
    let found = text[at..].chars().next().map(|c| format!("{c:?}")).unwrap_or_default();
    Err(Error::new(
        file,
        &format!("line {line}"),
        &found,
        "printable characters; others as escapes in double quotes",
        "holds a control character or a line break of another kind",
    )
    .on_line(line))
}

fn line(mark: &Marker) -> u32 {
    u32::try_from(mark.line()).unwrap_or(u32::MAX)
}

/// A value and what it costs when an alias repeats it.
#[derive(Clone)]
struct Sized {
    value: Value,
    values: usize,
    bytes: usize,
}

enum Open {
    Seq {
        items: Vec<Value>,
        line: u32,
        anchor: usize,
        values: usize,
        bytes: usize,
    },
    Map {
        map: Map,
        merge: Option<Vec<Map>>,
        key: Option<Slot>,
        line: u32,
        anchor: usize,
        values: usize,
        bytes: usize,
    },
}

/// The key a map waits to get a value for.
enum Slot {
    Key(Key),
    Merge,
}

struct Loader<'a> {
    file: &'a str,
    open: Vec<Open>,
    anchors: HashMap<usize, Sized>,
    root: Option<Value>,
    values: usize,
    bytes: usize,
}

impl Loader<'_> {
    fn fail(&self, mark: &Marker, found: &str, allowed: &str, message: &str) -> Error {
        let line = line(mark);
        let mut at = String::new();
        for open in &self.open {
            match open {
                Open::Seq { items, .. } => at.push_str(&format!("[{}]", items.len())),
                Open::Map { key: Some(Slot::Key(key)), .. } => {
                    if !at.is_empty() {
                        at.push('.');
                    }
                    at.push_str(key.as_str());
                }
                Open::Map { .. } => {}
            }
        }
        if at.is_empty() {
            at = format!("line {line}");
        }
        Error::new(self.file, &at, found, allowed, message).on_line(line)
    }

    fn take(&mut self, event: Event<'_>, mark: &Marker) -> Result<()> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let data = self.scalar(&text, style, tag.as_deref(), mark)?;
                let bytes = text.len();
                let Some(data) = data else { return self.merge_key(mark) };
                let sized = Sized { value: Value { data, line: line(mark) }, values: 1, bytes };
                self.keep(anchor, &sized);
                self.put(sized, mark)
            }
            Event::Alias(id) => {
                let Some(sized) = self.anchors.get(&id).cloned() else {
                    return Err(self.fail(
                        mark,
                        "",
                        "an alias of a value that is complete",
                        "is an alias of itself",
                    ));
                };
                self.put(sized, mark)
            }
            Event::SequenceStart(anchor, tag) => {
                self.collection_tag(tag.as_deref(), "seq", mark)?;
                self.opens(
                    Open::Seq { items: Vec::new(), line: line(mark), anchor, values: 1, bytes: 0 },
                    mark,
                )
            }
            Event::MappingStart(anchor, tag) => {
                self.collection_tag(tag.as_deref(), "map", mark)?;
                let line = line(mark);
                let open =
                    Open::Map { map: Map::new(), merge: None, key: None, line, anchor, values: 1, bytes: 0 };
                self.opens(open, mark)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.open.pop() else { return Ok(()) };
                let (sized, anchor) = close(open);
                self.keep(anchor, &sized);
                self.put(sized, mark)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn opens(&mut self, open: Open, mark: &Marker) -> Result<()> {
        if self.open.len() >= MAX_DEPTH {
            return Err(self.fail(mark, "", &format!("{MAX_DEPTH} levels"), "is too deep"));
        }
        self.open.push(open);
        Ok(())
    }

    fn keep(&mut self, anchor: usize, sized: &Sized) {
        if anchor > 0 {
            self.anchors.insert(anchor, sized.clone());
        }
    }

    /// Puts a finished value where it belongs.
    fn put(&mut self, sized: Sized, mark: &Marker) -> Result<()> {
        self.values += sized.values;
        self.bytes += sized.bytes;
        // Containers were counted by what they hold; counting them again here keeps the bound simple.
        if self.values > MAX_VALUES * 2 || self.bytes > MAX_BYTES * 2 {
            let allowed = format!("{MAX_VALUES} values with aliases written out");
            return Err(self.fail(mark, "", &allowed, "is too large"));
        }
        let Sized { value, values: more_values, bytes: more_bytes } = sized;
        match self.open.last_mut() {
            None => {
                self.root = Some(value);
                return Ok(());
            }
            Some(Open::Seq { items, values, bytes, .. }) => {
                items.push(value);
                *values += more_values;
                *bytes += more_bytes;
                return Ok(());
            }
            Some(Open::Map { map, merge, key, values, bytes, .. }) => {
                *values += more_values;
                *bytes += more_bytes;
                match key.take() {
                    Some(Slot::Key(name)) => {
                        map.insert(name, value);
                        return Ok(());
                    }
                    Some(Slot::Merge) => {
                        if let Some(maps) = merge_maps(value) {
                            *merge = Some(maps);
                            return Ok(());
                        }
                    }
                    None => return self.start_entry(value, mark),
                }
            }
        }
        Err(self.fail(mark, "", "a map or a list of maps", "is not something `<<` can merge"))
    }

    fn start_entry(&mut self, value: Value, mark: &Marker) -> Result<()> {
        let new = match value.data {
            Data::Text(text) => Key::text(&text),
            Data::Int(int) => Key::scalar(&int.to_string()),
            Data::Bool(flag) => Key::scalar(if flag { "true" } else { "false" }),
            Data::Float(number) => Key::scalar(&print::yaml_float(number)),
            Data::Null | Data::Seq(_) | Data::Map(_) => {
                return Err(self.fail(
                    mark,
                    "",
                    "keys that are text",
                    "has nothing, a list or a map as a key",
                ));
            }
        };
        if let Some(Open::Map { map, key, .. }) = self.open.last_mut()
            && !map.contains_key(&new)
        {
            *key = Some(Slot::Key(new));
            return Ok(());
        }
        Err(self.fail(mark, &format!("{:?}", new.as_str()), "each key once", "is a key that stands twice"))
    }

    fn merge_key(&mut self, mark: &Marker) -> Result<()> {
        match self.open.last_mut() {
            Some(Open::Map { key: key @ None, merge: None, .. }) => {
                *key = Some(Slot::Merge);
                Ok(())
            }
            Some(Open::Map { key: None, .. }) => {
                Err(self.fail(mark, "\"<<\"", "each key once", "is a key that stands twice"))
            }
            _ => Err(self.fail(
                mark,
                "<<",
                "text in quotes",
                "must be quoted: it is the merge key of YAML 1.1",
            )),
        }
    }

    /// What a scalar is; `None` for the merge key.
    fn scalar(
        &self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        mark: &Marker,
    ) -> Result<Option<Data>> {
        let Some(tag) = tag else {
            if style != ScalarStyle::Plain {
                return Ok(Some(Data::Text(text.to_owned())));
            }
            if !begins_plain(text) {
                let message = "must be quoted: it begins or goes on with a character of YAML's own";
                return Err(self.fail(mark, text, "the same text in quotes", message));
            }
            return match resolve(text) {
                Plain::Data(data) => Ok(Some(data)),
                Plain::Merge => Ok(None),
                Plain::Differs(what) => {
                    let message = format!("must be quoted: YAML 1.1 readers take it for {what}");
                    Err(self.fail(mark, text, "the same text in quotes", &message))
                }
            };
        };
        let full = full_tag(tag);
        let typed = match (full.as_str(), core_schema(text)) {
            ("tag:yaml.org,2002:str", _) => Some(Data::Text(text.to_owned())),
            ("tag:yaml.org,2002:null", Data::Null) => Some(Data::Null),
            ("tag:yaml.org,2002:float", Data::Int(int)) => Some(Data::Float(int.to_f64())),
            ("tag:yaml.org,2002:int", data @ Data::Int(_))
            | ("tag:yaml.org,2002:bool", data @ Data::Bool(_))
            | ("tag:yaml.org,2002:float", data @ Data::Float(_)) => {
                matches!(resolve(text), Plain::Data(_)).then_some(data)
            }
            _ => None,
        };
        typed.map(Some).ok_or_else(|| self.bad_tag(&full, mark))
    }

    fn collection_tag(&self, tag: Option<&Tag>, kind: &str, mark: &Marker) -> Result<()> {
        match tag.map(full_tag) {
            Some(full) if full != format!("{CORE}{kind}") => Err(self.bad_tag(&full, mark)),
            _ => Ok(()),
        }
    }

    fn bad_tag(&self, full: &str, mark: &Marker) -> Error {
        let found = full.strip_prefix(CORE).map_or_else(|| full.to_owned(), |name| format!("!!{name}"));
        self.fail(
            mark,
            &found,
            "!!str, !!int, !!float, !!bool, !!null, !!seq, !!map",
            "is a tag that does not fit",
        )
    }
}

/// Whether a plain scalar is one to every reader: it begins with no indicator and holds no tab.
fn begins_plain(text: &str) -> bool {
    !text.starts_with([',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`'])
        && !text.contains('\t')
}

fn full_tag(tag: &Tag) -> String {
    format!("{}{}", tag.handle, tag.suffix)
}

fn close(open: Open) -> (Sized, usize) {
    match open {
        Open::Seq { items, line, anchor, values, bytes } => {
            (Sized { value: Value { data: Data::Seq(items), line }, values, bytes }, anchor)
        }
        Open::Map { map, merge, line, anchor, values, bytes, .. } => {
            let map = match merge {
                None => map,
                // As PyYAML does: merged keys come first, own keys win, earlier maps of a list win.
                Some(maps) => {
                    let mut all = Map::new();
                    for (key, value) in maps.into_iter().rev().flatten().chain(map) {
                        all.insert(key, value);
                    }
                    all
                }
            };
            (Sized { value: Value { data: Data::Map(map), line }, values, bytes }, anchor)
        }
    }
}

fn merge_maps(value: Value) -> Option<Vec<Map>> {
    let map = |value: Value| match value.data {
        Data::Map(map) => Some(map),
        _ => None,
    };
    match value.data {
        Data::Map(map) => Some(vec![map]),
        Data::Seq(items) => items.into_iter().map(map).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{to_json, to_yaml};
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Value> {
        from_yaml("t.yaml", text.as_bytes())
    }

    fn json(text: &str) -> String {
        match read(text) {
            Ok(value) => to_json(&value),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn scalars_and_collections() {
        assert_eq!(json("a: 1\nb: [x, 'y', \"z\"]\nc:\n"), r#"{"a":1,"b":["x","y","z"],"c":null}"#);
        assert_eq!(json(""), "null");
        assert_eq!(json("--- \na: |\n  x\n  y\n...\n"), r#"{"a":"x\ny\n"}"#);
        assert_eq!(json("a: !!str 5\nc: !!float 7\n"), r#"{"a":"5","c":7.0}"#);
    }

    #[test]
    fn merges_as_pyyaml_does() {
        assert_eq!(
            json("x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {d: 4, <<: [*x, *y], b: 3}\n"),
            r#"{"x":{"a":1,"b":1},"y":{"b":2,"c":2},"z":{"b":3,"c":2,"a":1,"d":4}}"#
        );
        assert_eq!(json("a: {'<<': {b: 1}}\n"), r#"{"a":{"<<":{"b":1}}}"#);
    }

    #[test]
    fn refusals_name_the_place() {
        for (text, message) in [
            (
                "a: 1\na: 2\n",
                "t.yaml:2: line 2: is a key that stands twice; found \"a\"; allowed: each key once",
            ),
            (
                "s:\n  e: {X: off}\n",
                "t.yaml:2: s.e.X: must be quoted: YAML 1.1 readers take it for the boolean false; found off; \
                 allowed: the same text in quotes",
            ),
            ("a: 1\n---\nb: 2\n", "t.yaml:2: line 2: holds a second document; allowed: one document"),
        ] {
            assert_eq!(json(text), message);
        }
        for bad in
            ["a: &a [*a]\n", "<<: 1\n", "? [a]\n: b\n", "a: !x 1\n", "a: !!binary aGk=\n", "a: \u{7}\n"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..12 {
            let aliases = vec![format!("*a{}", i - 1); 10].join(", ");
            text.push_str(&format!("a{i}: &a{i} [{aliases}]\n"));
        }
        assert!(json(&text).contains("too large"));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::default()),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_filter("NaN is not equal to itself", |n| !n.is_nan()).prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
            "[-+0-9.:_eoxyn~#' ]{0,8}".prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::seq),
                prop::collection::vec((any::<String>(), inner), 0..5).prop_map(Value::map),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(value in any_value()) {
            let text = to_yaml(&value);
            prop_assert_eq!(read(&text).map_err(|e| format!("{e}\n{text}")), Ok(value));
        }

        #[test]
        fn what_is_read_prints_back(text in "[a-c:{}\\[\\], \n\"'0-9.&*!<|>-]{0,40}") {
            if let Ok(value) = read(&text) {
                let printed = to_yaml(&value);
                prop_assert_eq!(to_yaml(&read(&printed).map_err(|e| TestCaseError::fail(format!("{e}\n{printed}")))?), printed);
            }
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in ".{0,40}") {
            let _ = from_yaml("t.yaml", &bytes);
            let _ = read(&text);
        }
    }
}
