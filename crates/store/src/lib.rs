//! What a parent keeps on disk: SQLite for every state that matters, blob files named by hash, app
//! archives and the audit log. Everything is on disk before it is acted on.

pub mod bundle;
