//! Scenarios over real processes on this machine, a module each; each asserts what a user would notice.

mod contract;
