//! A federation in a temporary directory, and servers on loopback.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

pub mod proxy;

use jiff::Timestamp;
use polder_transport::Endpoint;
use polder_transport::client::{Client, Dialer};
use polder_transport::identity::{
    Authority, Kit, Participant, Principal, ProjectPlan, Revocations, provision,
};
use polder_transport::server::{Limits, Listener, Router, serve};
use polder_transport::tls::Acceptor;
use polder_words::{OrgName, SiteName, UserName, UserRole};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub fn site(name: &str) -> Participant {
    Participant {
        principal: Principal::Site(SiteName::new(name).unwrap()),
        org: OrgName::new("org_a").unwrap(),
        hosts: Vec::new(),
        request: None,
    }
}

pub fn user(name: &str, role: UserRole) -> Participant {
    Participant {
        principal: Principal::User(UserName::new(name).unwrap(), role),
        org: OrgName::new("org_a").unwrap(),
        hosts: Vec::new(),
        request: None,
    }
}

pub fn plan() -> ProjectPlan {
    let server = Participant {
        principal: Principal::Server(SiteName::new("fl.example.org").unwrap()),
        org: OrgName::new("host").unwrap(),
        hosts: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
        request: None,
    };
    ProjectPlan {
        federation: "cancer-net".to_owned(),
        server: Endpoint::new("fl.example.org", 8443).unwrap(),
        days: 365,
        participants: vec![server, site("hospital-a"), user("lead@org_a.com", UserRole::Lead)],
    }
}

pub struct Federation {
    pub dir: TempDir,
    pub revocations: Arc<Revocations>,
}

impl Federation {
    pub fn new() -> Self {
        Self::at(Timestamp::now())
    }

    /// Provisioned at another time than now.
    pub fn at(time: Timestamp) -> Self {
        let dir = tempfile::tempdir().unwrap();
        provision(&plan(), dir.path(), time).unwrap();
        Self { dir, revocations: Arc::default() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("kits").join(name)
    }

    pub fn kit(&self, name: &str) -> Kit {
        Kit::open(&self.path(name), Timestamp::now()).unwrap()
    }

    pub fn authority(&self) -> Authority {
        Authority::open(&self.dir.path().join("ca")).unwrap()
    }

    pub fn acceptor(&self) -> Acceptor {
        Acceptor::participants(&self.kit("fl.example.org"), self.revocations.clone()).unwrap()
    }

    pub fn dialer(&self, name: &str, server: &Server) -> Dialer {
        Dialer::federation(&self.kit(name)).unwrap().address(server.addr.unwrap())
    }

    pub fn client(&self, name: &str, server: &Server) -> Client {
        Client::new(self.dialer(name, server))
    }
}

pub struct Server {
    pub addr: Option<SocketAddr>,
    pub stop: CancellationToken,
    pub task: JoinHandle<()>,
}

impl Server {
    pub async fn tcp<S: Send + Sync + 'static>(
        acceptor: Acceptor,
        router: Router<S>,
        limits: Limits,
    ) -> Self {
        Self::on(Listener::tcp("127.0.0.1:0").await.unwrap(), acceptor, router, limits)
    }

    pub fn on<S: Send + Sync + 'static>(
        listener: Listener,
        acceptor: Acceptor,
        router: Router<S>,
        limits: Limits,
    ) -> Self {
        let addr = listener.local_addr();
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(listener, acceptor, Arc::new(router), limits, stop.clone()));
        Self { addr, stop, task }
    }
}

pub fn limits() -> Limits {
    Limits { grace: Duration::from_secs(5), ..Limits::default() }
}
