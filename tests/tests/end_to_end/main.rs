//! Scenarios over real processes on this machine, a module each; each asserts what a user would notice.

mod contract;
mod crash_points;
mod demo;
mod enrolment;
mod helpers;
mod identities;
mod kills;
mod many;
mod proxies;
mod python;
mod refusals;
mod rounds;
mod secrets;
mod studies;
mod syscalls;
mod taken_over;
mod trainers;
