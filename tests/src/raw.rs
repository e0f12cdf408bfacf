//! Somebody who speaks the user API by hand: signs what nobody should, uploads what no client would.

use jiff::Timestamp;
use polder_api::order::ORDER_DOMAIN;
use polder_api::user::{OpenSession, OpenUpload, Session, Submit, Submitted};
use polder_api::{BlobRef, Order, OrderSites, PROTOCOL, Problem, SignedOrder};
use polder_transport::Body;
use polder_transport::client::{Client, ClientError, Dialer};
use polder_transport::identity::Kit;
use polder_words::{Hash, JobId, Nonce};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use tokio::runtime::Runtime;

/// A client that checks nothing.
pub struct Raw {
    runtime: Runtime,
    client: Client,
    /// Its kit.
    pub kit: Kit,
    /// Its session, when one was opened.
    pub session: Option<Session>,
}

impl std::fmt::Debug for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Raw").field("kit", &self.kit.info().name).finish_non_exhaustive()
    }
}

impl Raw {
    /// With a kit as if it were `at`, so that an expired one can be shown too. No session yet.
    ///
    /// # Panics
    /// When the kit cannot be used even then.
    #[must_use]
    pub fn with_kit(kit: &Path, at: Timestamp) -> Self {
        let kit = Kit::open(kit, at).unwrap_or_else(|error| panic!("{error}"));
        let client = Client::new(Dialer::federation(&kit).expect("a good key"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { runtime, client, kit, session: None }
    }

    /// Opens a session of a study.
    ///
    /// # Errors
    /// What the server answers.
    pub fn open(&mut self, study: &str) -> Result<&Session, ClientError> {
        let ask = OpenSession { study: study.parse().expect("a good name"), protocol: PROTOCOL };
        let session: Session = self.post("/v1/user/sessions", &ask)?;
        self.client = self.client.clone().with_header("authorization", &format!("Bearer {}", session.token));
        Ok(self.session.insert(session))
    }

    /// A `GET`.
    ///
    /// # Errors
    /// What the server answers.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.runtime.block_on(self.client.get(path).fetch())
    }

    /// A `POST` of JSON.
    ///
    /// # Errors
    /// What the server answers.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.runtime.block_on(self.client.post(path).json(body).fetch())
    }

    /// Uploads an archive; names it.
    ///
    /// # Errors
    /// What the server answers.
    pub fn upload(&self, bytes: &[u8]) -> Result<BlobRef, ClientError> {
        let blob = BlobRef { root: Hash(*blake3::hash(bytes).as_bytes()), size: bytes.len() as u64 };
        self.runtime.block_on(async {
            self.client.post("/v1/user/uploads").json(&OpenUpload { blob }).done().await?;
            let path = format!("/v1/user/uploads/{}?size={}&at=0", blob.root, blob.size);
            self.client.put(&path).body(Body::full(bytes.to_vec())).bulk().done().await
        })?;
        Ok(blob)
    }

    /// An order for every site of the session's study: one app `app` for everybody.
    ///
    /// # Panics
    /// Without a session.
    #[must_use]
    pub fn order(&self, app: BlobRef) -> Order {
        let session = self.session.as_ref().expect("a session");
        self.make_order(&session.federation, session.study.as_str(), app)
    }

    /// An order for every site of a study, made without asking anybody.
    #[must_use]
    pub fn order_by_hand(&self, federation: &str, study: &str, app: &[u8]) -> Order {
        let app = BlobRef { root: Hash(*blake3::hash(app).as_bytes()), size: app.len() as u64 };
        self.make_order(federation, study, app)
    }

    fn make_order(&self, federation: &str, study: &str, app: BlobRef) -> Order {
        let now = Timestamp::now();
        let seconds = u64::try_from(now.as_second()).expect("after 1970");
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&now.as_nanosecond().to_le_bytes());
        Order {
            version: 1,
            federation: federation.to_owned(),
            study: study.parse().expect("a good name"),
            submitter: self.kit.info().name.parse().expect("a user's kit"),
            sites: OrderSites::All,
            meta: r#"{"name": "raw", "deploy_map": {"app": ["@ALL"]}, "min_clients": 1}"#.to_owned(),
            apps: BTreeMap::from([("app".parse().expect("a good name"), app)]),
            cloned_from: None,
            nonce: Nonce(nonce),
            issued: seconds,
            expires: seconds + 3600,
        }
    }

    /// Signs a text as an order.
    ///
    /// # Panics
    /// When the key cannot sign.
    #[must_use]
    pub fn sign(&self, text: &str) -> SignedOrder {
        let signature = self.kit.sign(ORDER_DOMAIN, text.as_bytes()).expect("a good key");
        SignedOrder {
            order: text.to_owned(),
            signature: signature.to_string(),
            certificate: self.kit.certificate_pem().to_owned(),
        }
    }

    /// Signs and sends an order.
    ///
    /// # Errors
    /// What the server answers.
    pub fn submit(&self, order: &Order) -> Result<JobId, ClientError> {
        self.submit_signed(self.sign(&serde_json::to_string(order).expect("an order prints")))
    }

    /// Sends an order.
    ///
    /// # Errors
    /// What the server answers.
    pub fn submit_signed(&self, order: SignedOrder) -> Result<JobId, ClientError> {
        let answer: Submitted = self.post("/v1/user/jobs", &Submit { order })?;
        Ok(answer.job)
    }
}

/// The refusal in an answer.
///
/// # Panics
/// When it is no refusal of the server's.
#[track_caller]
pub fn refusal<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> Problem {
    match answer {
        Ok(accepted) => panic!("accepted: {accepted:?}"),
        Err(error) => error.problem().unwrap_or_else(|| panic!("{error}")).clone(),
    }
}

/// A gzip-compressed tar archive of entries as given: nothing is checked or tidied.
///
/// # Panics
/// When the entries cannot be written.
#[must_use]
pub fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut tar = Vec::new();
    for entry in entries {
        tar.extend(entry.header());
        tar.extend(entry.content);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    gzip(&tar)
}

/// Compresses.
///
/// # Panics
/// Never: the sink is memory.
#[must_use]
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

/// A member of an archive, header by hand.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Its name, as it stands.
    pub name: &'a str,
    /// `0` file, `1` hard link, `2` symbolic link, `3` character device, `5` folder, `6` FIFO.
    pub kind: u8,
    /// What a link names.
    pub link: &'a str,
    /// Its bytes.
    pub content: &'a [u8],
}

impl<'a> Entry<'a> {
    /// A regular file.
    #[must_use]
    pub fn file(name: &'a str, content: &'a [u8]) -> Self {
        Self { name, kind: b'0', link: "", content }
    }

    /// Something else.
    #[must_use]
    pub fn odd(name: &'a str, kind: u8, link: &'a str) -> Self {
        Self { name, kind, link, content: b"" }
    }

    /// 512 bytes in the ustar format.
    #[must_use]
    pub fn header(&self) -> [u8; 512] {
        self.header_claiming(self.content.len() as u64)
    }

    /// The same, claiming this many bytes of content.
    #[must_use]
    pub fn header_claiming(&self, size: u64) -> [u8; 512] {
        let mut header = [0u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, self.name.as_bytes());
        put(100, b"0000644\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{size:011o}\0").as_bytes());
        put(136, b"00000000000\0");
        put(148, b"        ");
        put(156, &[self.kind]);
        put(157, self.link.as_bytes());
        put(257, b"ustar\x0000");
        put(329, b"0000001\0");
        put(337, b"0000003\0");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        header
    }
}
