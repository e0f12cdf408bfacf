//! The ledger over real processes.
