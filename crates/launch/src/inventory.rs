//! What is taken of what a site has: devices by id, exclusively; CPUs and memory by amount.

use crate::launcher::{Allotted, DeviceId, Offer, Resolved};
use crate::row::Key;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// How much is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ask {
    /// GPUs.
    pub gpus: u32,
    /// CPUs, none named is none counted.
    pub cpus: u32,
    /// Bytes of memory, none named is none counted.
    pub memory: u64,
}

impl From<&Resolved> for Ask {
    fn from(want: &Resolved) -> Self {
        Self { gpus: want.gpus, cpus: want.cpus.unwrap_or(0), memory: want.memory.unwrap_or(0) }
    }
}

/// There is not enough of something.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{free} {what} free of {all}, {asked} asked for")]
pub struct Short {
    /// `GPUs`, `CPUs`, `MiB of memory`.
    pub what: &'static str,
    /// Not taken.
    pub free: u64,
    /// What there is.
    pub all: u64,
    /// What was asked for.
    pub asked: u64,
}

impl Short {
    /// Whether waiting is in vain: there will never be enough.
    #[must_use]
    pub fn is_for_ever(&self) -> bool {
        self.asked > self.all
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Lease {
    ask: Ask,
    allotted: Allotted,
}

/// What there is and who has it. Nothing there is, until an offer is known.
#[derive(Debug, Clone)]
pub struct Inventory {
    devices: Option<Vec<DeviceId>>,
    cpus: Option<u32>,
    memory: Option<u64>,
    leases: BTreeMap<Key, Lease>,
}

impl Default for Inventory {
    fn default() -> Self {
        // Not `None`: that says that a scheduler hands out as much as is asked for.
        Self { devices: Some(Vec::new()), cpus: Some(0), memory: Some(0), leases: BTreeMap::new() }
    }
}

impl Inventory {
    /// Takes over what the site has now; leases stay.
    pub fn refresh(&mut self, offer: &Offer) {
        self.devices.clone_from(&offer.devices);
        (self.cpus, self.memory) = (offer.cpus, offer.memory);
    }

    /// Sets aside, or says what is missing. Who has a lease gets it again when it still fits.
    ///
    /// # Errors
    /// When there is not enough of something now.
    pub fn take(&mut self, key: Key, ask: Ask) -> Result<Allotted, Short> {
        if let Some(lease) = self.leases.get(&key) {
            if lease.ask == ask {
                return Ok(lease.allotted.clone());
            }
            self.leases.remove(&key);
        }
        let short = |what, free, all, asked| Err(Short { what, free, all, asked });
        if let Some((free, all)) = self.cpus()
            && free < u64::from(ask.cpus)
        {
            return short("CPUs", free, all, ask.cpus.into());
        }
        if let Some((free, all)) = self.memory()
            && free < ask.memory
        {
            return short("MiB of memory", free >> 20, all >> 20, ask.memory.div_ceil(1 << 20));
        }
        let mut allotted = Allotted::default();
        // Without devices of its own the site has a scheduler that chooses them.
        if let Some(all) = &self.devices {
            let taken: BTreeSet<_> = self.leases.values().flat_map(|lease| &lease.allotted.devices).collect();
            let free: Vec<_> = all.iter().filter(|id| !taken.contains(id)).collect();
            if free.len() < ask.gpus as usize {
                return short("GPUs", free.len() as u64, all.len() as u64, ask.gpus.into());
            }
            allotted.devices = free.into_iter().take(ask.gpus as usize).cloned().collect();
        }
        self.leases.insert(key, Lease { ask, allotted: allotted.clone() });
        Ok(allotted)
    }

    /// Puts back a lease that is on disk, whatever there is now.
    pub fn restore(&mut self, key: Key, ask: Ask, allotted: Allotted) {
        self.leases.insert(key, Lease { ask, allotted });
    }

    /// Frees a lease, if there is one.
    pub fn free(&mut self, key: Key) {
        self.leases.remove(&key);
    }

    /// GPUs: free and all.
    #[must_use]
    pub fn gpus(&self) -> Option<(u64, u64)> {
        let all = self.devices.as_ref()?;
        let taken = self.leases.values().flat_map(|lease| &lease.allotted.devices);
        let taken = taken.filter(|id| all.contains(id)).count();
        Some(((all.len() - taken.min(all.len())) as u64, all.len() as u64))
    }

    /// CPUs: free and all.
    #[must_use]
    pub fn cpus(&self) -> Option<(u64, u64)> {
        let all = u64::from(self.cpus?);
        let taken: u64 = self.leases.values().map(|lease| u64::from(lease.ask.cpus)).sum();
        Some((all.saturating_sub(taken), all))
    }

    /// Bytes of memory: free and all.
    #[must_use]
    pub fn memory(&self) -> Option<(u64, u64)> {
        let all = self.memory?;
        let taken = self.leases.values().fold(0u64, |sum, lease| sum.saturating_add(lease.ask.memory));
        Some((all.saturating_sub(taken), all))
    }
}
