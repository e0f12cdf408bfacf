//! The database's one thread, and how work gets there.
//!
//! ```text
//! callers --call--> queue --> [ BEGIN; each call in a savepoint; COMMIT (one sync) ] --> answers
//! ```
//! All calls that wait when the thread comes round share one transaction and so one `fsync`: sixty sites
//! that say something at once cost one, and a caller that does not wait for its answer (a round's event) costs the
//! others nothing. An answer is given only after the commit. A call that fails is rolled back alone.

use crate::error::{Result, StoreError};
use crate::schema;
use rusqlite::Connection;
use std::path::Path;
use std::sync::mpsc;
use tokio::sync::oneshot;

/// Most calls in one transaction, so that the first does not wait for ever.
const GROUP: usize = 256;

type Answer = Box<dyn FnOnce(Option<StoreError>)>;
type Work = Box<dyn FnOnce(&Connection) -> Answer + Send>;

/// A handle to the database. Clones share it; the thread ends when the last is gone.
#[derive(Debug, Clone)]
pub struct Db {
    queue: mpsc::Sender<Work>,
}

/// A savepoint around one call.
struct Savepoint<'a>(&'a Connection);

impl<'a> Savepoint<'a> {
    fn begin(connection: &'a Connection) -> Result<Self> {
        connection.execute_batch("SAVEPOINT call").map_err(StoreError::at("beginning a savepoint"))?;
        Ok(Self(connection))
    }

    fn end(self, keep: bool) -> Result<()> {
        let sql = if keep { "RELEASE call" } else { "ROLLBACK TO call; RELEASE call" };
        self.0.execute_batch(sql).map_err(StoreError::at("ending a savepoint"))
    }
}

impl Db {
    /// Opens the database, brings its schema up to date and starts the thread.
    ///
    /// # Errors
    /// When the file cannot be opened, is damaged, or comes from a newer version.
    pub fn open(path: &Path) -> Result<Self> {
        let connection = Connection::open(path).map_err(StoreError::at("opening"))?;
        schema::prepare(&connection, path)?;
        let (queue, work) = mpsc::channel();
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || serve(&connection, &work))
            .map_err(StoreError::io(path))?;
        Ok(Self { queue })
    }

    /// Puts a call into the queue, in order, and gives a future of its answer. The call happens whether the
    /// future is awaited or not; the answer comes once the call is on disk.
    pub fn call<T, F>(&self, work: F) -> impl Future<Output = Result<T>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let sent = self.put(work, move |done| {
            // Nobody may be waiting any more.
            let _ = answer.send(done);
        });
        async move {
            sent?;
            answered.await.unwrap_or(Err(StoreError::Closed))
        }
    }

    /// The same for callers without a runtime.
    ///
    /// # Errors
    /// As the call's.
    pub fn call_blocking<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (answer, answered) = mpsc::channel();
        self.put(work, move |done| {
            let _ = answer.send(done);
        })?;
        answered.recv().unwrap_or(Err(StoreError::Closed))
    }

    fn put<T, F, S>(&self, work: F, sink: S) -> Result<()>
    where
        T: 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
        S: FnOnce(Result<T>) + Send + 'static,
    {
        let work: Work = Box::new(move |connection| {
            let done = Savepoint::begin(connection).and_then(|savepoint| {
                let value = work(connection);
                savepoint.end(value.is_ok())?;
                value
            });
            Box::new(move |failed| sink(failed.map_or(done, Err)))
        });
        self.queue.send(work).map_err(|_| StoreError::Closed)
    }
}

fn serve(connection: &Connection, work: &mpsc::Receiver<Work>) {
    while let Ok(first) = work.recv() {
        let mut answers = Vec::new();
        let begun = connection.execute_batch("BEGIN").map_err(StoreError::at("beginning a transaction"));
        if begun.is_ok() {
            answers.push(first(connection));
            while answers.len() < GROUP {
                let Ok(next) = work.try_recv() else { break };
                answers.push(next(connection));
            }
        }
        let ended = begun.and_then(|()| {
            connection.execute_batch("COMMIT").map_err(StoreError::at("committing")).inspect_err(|_| {
                let _ = connection.execute_batch("ROLLBACK");
            })
        });
        if let Err(error) = &ended {
            tracing::error!(%error, "the database does not take what was to be stored");
        }
        for answer in answers {
            answer(ended.as_ref().err().cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(db: &Db) -> i64 {
        db.call_blocking(|c| {
            c.query_row("SELECT count(*) FROM nonces", [], |row| row.get(0))
                .map_err(StoreError::at("counting"))
        })
        .expect("counts")
    }

    fn put(n: i64) -> impl FnOnce(&Connection) -> Result<()> + Send + 'static {
        move |c| {
            c.execute("INSERT INTO nonces(nonce, expires) VALUES (?1, 0)", [n.to_string()])
                .map_err(StoreError::at("putting"))?;
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_call_that_fails_takes_only_itself_along() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let db = Db::open(&dir.path().join("polder.db")).expect("opens");
        // All three are queued before the first is answered.
        let calls = (db.call(put(1)), db.call(put(1)), db.call(put(2)));
        let failing = db.call(|c| {
            put(3)(c)?;
            Err::<(), _>(StoreError::Missing { what: "a reason".to_owned() })
        });
        assert!(calls.0.await.is_ok());
        assert!(calls.1.await.is_err());
        assert!(calls.2.await.is_ok());
        assert!(failing.await.is_err());
        assert_eq!(count(&db), 2);
    }

    #[tokio::test]
    async fn a_call_nobody_waits_for_happens() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("polder.db");
        let db = Db::open(&path).expect("opens");
        drop(db.call(put(7)));
        assert_eq!(count(&db), 1);
        drop(db);
        assert_eq!(count(&Db::open(&path).expect("opens again")), 1);
    }
}
