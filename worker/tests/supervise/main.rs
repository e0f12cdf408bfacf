//! The process launcher and its shim, over real processes.

mod common;

mod end;
mod fence;
mod launch;
mod ledger;
mod limits;
