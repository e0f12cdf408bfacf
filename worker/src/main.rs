//! room
fn main() {}
