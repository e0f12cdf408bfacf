//! Launching workers: what an adapter must be able to do, and the ledger that never starts one twice.
//!
//! A *launch* is one worker of one job at one site. Its row stands in the ledger, on disk, before anything
//! native is asked for, and goes through
//!
//! ```text
//!                    prepare              start
//! want -> planned ------------> submitted -------> pending -> running -> exited(outcome)
//!           ^        (object made, id on disk)                              |
//!           |                                                     remove what is left of it
//!           +------ back-off: proof that it is gone, class worth a new attempt ----+--> ended
//! ```
//!
//! with *unknown since* laid over any of them while the backend cannot be asked. What is done next depends on the
//! row alone, so the parent may be killed between any two lines:
//!
//! * [`launcher`]: `trait Launcher`, implemented by each adapter, and its words.
//! * [`row`]: one row and what it remembers. [`machine`]: pure, what a row becomes and what to do next.
//! * [`inventory`]: which devices, CPUs and memory are taken. [`book`]: all rows and the inventory, still pure.
//! * [`ledger`]: the shell that reads and writes disk ([`store`]) and calls the adapter.

pub mod book;
pub mod clock;
pub mod crash;
pub mod inventory;
pub mod launcher;
pub mod ledger;
pub mod machine;
pub mod row;
pub mod store;

pub use clock::{Clock, Time};
pub use inventory::{Ask, Short};
pub use launcher::{
    Allotted, Cause, Check, DeviceId, Down, End, Event, Exit, Fate, Handover, LaunchError, Launcher, Native,
    NativeId, Offer, Place, Plan, Proof, Refusal, Resolved, Sighting,
};
pub use ledger::{Host, Ledger, LedgerError, Settings, Standing, WantError};
pub use row::{Key, Row, State, Stop, Unknown};
pub use store::{LedgerStore, MemoryStore, StoreError};
