//! What is printed, and how: text for people, one versioned JSON document a line for programs.
//!
//! A command hands its facts to [`Out`] once, with a way to write them as text. Notes for people (what to
//! do next, progress) go to standard error, so that standard output holds results only.

pub(crate) mod failure;
pub(crate) mod job;
pub(crate) mod sites;
pub(crate) mod table;
pub(crate) mod units;

pub(crate) use failure::{Ending, Failure};

use serde::Serialize;
use std::io::{self, IsTerminal as _, Write};

/// Version of every JSON document printed here but those whose shape another contract fixes.
pub(crate) const VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a, T: Serialize> {
    version: u32,
    #[serde(flatten)]
    body: &'a T,
}

/// Where results and notes go.
pub(crate) struct Out {
    json: bool,
    results: Box<dyn Write>,
    notes: Box<dyn Write>,
}

impl Out {
    /// Prints to the standard streams.
    pub(crate) fn standard(json: bool) -> Self {
        Self { json, results: Box::new(io::stdout()), notes: Box::new(io::stderr()) }
    }

    /// Prints nothing.
    pub(crate) fn silent() -> Self {
        Self { json: true, results: Box::new(io::sink()), notes: Box::new(io::sink()) }
    }

    /// Whether programs read.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether a person sees the notes as they come: only then do bars move.
    pub(crate) fn is_live(&self) -> bool {
        !self.json && io::stderr().is_terminal()
    }

    /// A result: the document with `--json`, else the text.
    pub(crate) fn result<T: Serialize>(
        &mut self,
        body: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Ending> {
        if self.json { self.document(&Document { version: VERSION, body }) } else { self.text(&text(body)) }
    }

    /// A JSON document whose shape is fixed elsewhere.
    pub(crate) fn document<T: Serialize>(&mut self, document: &T) -> Result<(), Ending> {
        let text = serde_json::to_string(document).expect("what is printed has text keys and finite numbers");
        self.exact(&text)
    }

    /// Text for people on standard output, made harmless for a terminal; a line end is added when there is none.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Ending> {
        self.exact(&units::plain(text))
    }

    /// Text for programs on standard output, as it is; a line end is added when there is none.
    pub(crate) fn exact(&mut self, text: &str) -> Result<(), Ending> {
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        write!(self.results, "{text}{end}").and_then(|()| self.results.flush()).map_err(|_| Ending::Closed)
    }

    /// A note for people, on standard error; nothing with `--json`.
    pub(crate) fn note(&mut self, text: &str) {
        if !self.json {
            // Nobody can be told that notes cannot be written.
            let _ = writeln!(self.notes, "{}", units::plain(text)).and_then(|()| self.notes.flush());
        }
    }

    /// What is printed to standard output by some code, for tests.
    #[cfg(test)]
    pub(crate) fn captured(json: bool, print: impl FnOnce(&mut Self)) -> String {
        use std::sync::{Arc, Mutex};
        #[derive(Clone, Default)]
        struct Shared(Arc<Mutex<Vec<u8>>>);
        impl Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().expect("no test panics while it writes").extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let shared = Shared::default();
        print(&mut Self { json, results: Box::new(shared.clone()), notes: Box::new(io::sink()) });
        let bytes = shared.0.lock().expect("no test panics while it writes").clone();
        String::from_utf8(bytes).expect("only text is printed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_harmless_text_and_programs_the_exact_one() {
        let foreign = "a\u{1b}[2Jb\u{202e}c\u{9b}d";
        let text = Out::captured(false, |out| out.result(&[0; 0], |_| foreign.to_owned()).unwrap_or(()));
        assert_eq!(text, "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\n");
        #[derive(Serialize)]
        struct Name<'a> {
            name: &'a str,
        }
        let json =
            Out::captured(true, |out| out.result(&Name { name: foreign }, |_| String::new()).unwrap_or(()));
        let read: serde_json::Value = serde_json::from_str(&json).expect("one document");
        assert_eq!(read["name"], foreign);
    }
}
