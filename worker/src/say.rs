//! Saying things to the parent that are true until something newer is: the current result, the current
//! tasks. Each is said until it is acknowledged, and again when the parent is another run.

use crate::link::{Link, Lost};
use polder_api::site::Ack;
use polder_transport::client::{Client, ClientError};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::Notify;

/// What is true now, told to the parent by [`Current::keep_telling`].
pub(crate) struct Current<T> {
    value: RefCell<Option<Rc<T>>>,
    version: Cell<u64>,
    changed: Notify,
    told: Cell<u64>,
    heard: Notify,
}

impl<T> Current<T> {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            value: RefCell::new(None),
            version: Cell::new(0),
            changed: Notify::new(),
            told: Cell::new(0),
            heard: Notify::new(),
        })
    }

    /// From now on this is true.
    pub(crate) fn set(&self, value: Option<T>) {
        *self.value.borrow_mut() = value.map(Rc::new);
        self.version.set(self.version.get() + 1);
        self.changed.notify_one();
    }

    /// Waits until the parent has acknowledged the latest.
    pub(crate) async fn heard(&self) {
        while self.told.get() < self.version.get() {
            self.heard.notified().await;
        }
    }

    /// Tells it until the link is lost for good.
    pub(crate) async fn keep_telling(
        &self,
        link: &Link,
        tell: impl AsyncFn(&Client, &T) -> Result<Ack, ClientError>,
    ) -> Lost {
        loop {
            let version = self.version.get();
            let value = self.value.borrow().clone();
            if let Some(value) = value {
                // What is overtaken meanwhile is not told any more.
                let told = tokio::select! {
                    told = link.persist(async |client| tell(client, &value).await) => told,
                    () = self.changed.notified() => continue,
                };
                match told {
                    Ok(ack) => link.saw(ack.epoch),
                    Err(lost) => return lost,
                }
            }
            self.told.set(self.told.get().max(version));
            self.heard.notify_waiters();
            let told_to = link.epoch();
            loop {
                tokio::select! {
                    () = self.changed.notified() => break,
                    () = link.another_epoch() => if link.epoch() != told_to { break },
                }
            }
        }
    }
}
