//! Submitting: archives first, then the signed order that names them.
//!
//! Everything about an order is checked before anything of it is stored: signature and certificate, federation, study,
//! expiry, sites, meta, archives. The order's own hash is the job's id, so that sent twice it is one job.

use super::studies::check_sites;
use super::{Caller, caller, stored};
use crate::server::blobs::{Area, free_bytes};
use crate::server::facts;
use crate::server::job::{Job, Keep};
use crate::server::state::Server;
use polder_api::order::ORDER_DOMAIN;
use polder_api::user::{OpenUpload, Submit, Submitted};
use polder_api::{Order, OrderSites, Problem, ProblemCode, SignedOrder};
use polder_core::authz::Right;
use polder_core::job::JobConfig;
use polder_core::meta::JobMeta;
use polder_store::bundle::{Inspected, Limits, inspect};
use polder_store::{Inserted, NewJob, StoreError};
use polder_transport::blob::Have;
use polder_transport::identity::{Identity, Signature};
use polder_transport::server::{Call, Response, json};
use polder_words::{AppName, BlobRef, Hash, JobId, JobPhase, SiteName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Largest archive of an app.
const ARCHIVE_LIMIT: u64 = 1 << 30;
/// Largest order as JSON: the meta may have 256 KiB and is escaped in it.
const ORDER_LIMIT: usize = 1 << 20;
/// Largest meta.
const META_LIMIT: usize = 256 << 10;
/// Bytes of the disk that uploads leave free: the database needs room to say that the disk is full.
const DISK_RESERVE: u64 = 256 << 20;
/// How far the submitter's clock may be ahead, and how long an order may be valid at most, seconds.
const SKEW: u64 = 300;
const LONGEST: u64 = 30 * 86_400;

fn invalid(at: &str, message: impl Into<String>) -> Problem {
    Problem { at: Some(at.to_owned()), ..Problem::new(ProblemCode::Invalid, message) }
}

fn check_size(blob: &BlobRef) -> Result<(), Problem> {
    if blob.size > ARCHIVE_LIMIT {
        return Err(Problem {
            found: Some(blob.size.to_string()),
            allowed: Some(format!("at most {ARCHIVE_LIMIT}")),
            ..Problem::new(ProblemCode::TooLarge, "the archive is too large")
        });
    }
    Ok(())
}

/// `POST uploads`.
pub(super) async fn open_upload(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let caller = caller(&server, &call).await?;
    server.rights.check(&caller.who, Right::SubmitJob, None)?;
    let OpenUpload { blob } = call.json(4096).await?;
    check_size(&blob)?;
    let complete = server.blobs.study(&caller.study).has(&blob);
    Ok(json(&Have { at: if complete { blob.size } else { 0 }, complete }))
}

async fn upload_of(server: &Server, call: &Call) -> Result<(Area, BlobRef), Problem> {
    let caller = caller(server, call).await?;
    server.rights.check(&caller.who, Right::SubmitJob, None)?;
    let size = call.query::<u64>("size")?.ok_or_else(|| invalid("size", "the blob's size is missing"))?;
    let blob = BlobRef { root: call.param("root")?, size };
    check_size(&blob)?;
    match free_bytes(&server.state_dir) {
        Some(free) if free < size.saturating_add(DISK_RESERVE) => {
            return Err(Problem::new(ProblemCode::Busy, "the server's disk is too full for this archive"));
        }
        _ => {}
    }
    Ok((server.blobs.study(&caller.study), blob))
}

/// `PUT uploads/<root>/tree`.
pub(super) async fn begin_upload(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let (area, blob) = upload_of(&server, &call).await?;
    server.blobs.begin_upload(&mut call, &area, blob).await
}

/// `PUT uploads/<root>`.
pub(super) async fn upload(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let (area, blob) = upload_of(&server, &call).await?;
    server.blobs.upload(&mut call, &area, blob, true).await
}

/// `POST jobs`.
pub(super) async fn submit(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let caller = caller(&server, &call).await?;
    let Submit { order: signed } = call.json(ORDER_LIMIT).await?;
    let id = JobId::of_order(&Hash(*blake3::hash(signed.order.as_bytes()).as_bytes()));
    let known = server.store.job(id).await.map_err(|error| stored(&error))?;
    if known.is_some_and(|job| job.study == caller.study && job.submitter == caller.who.name) {
        return Ok(json(&Submitted { job: id }));
    }
    let refused = |problem: &Problem| {
        server.note(
            "order_refused",
            &[
                ("user", caller.who.name.as_str().into()),
                ("job", id.to_string().into()),
                ("why", problem.message.clone().into()),
            ],
        );
    };
    // From here until the job holds its archives, nobody may sweep them away.
    let _counted_on = server.blobs_in_use.read().await;
    let checked = check(&server, &caller, &signed).await.inspect_err(refused)?;
    let Checked { order, identity, meta, config } = checked;
    let keep = Keep {
        job: serde_json::to_value(&config).map_err(|error| invalid("job.yaml", error.to_string()))?,
        ..Keep::default()
    };
    let now = server.now();
    let new = NewJob {
        id,
        study: order.study.clone(),
        name: meta.name.clone().unwrap_or_else(|| id.short()),
        submitter: order.submitter.clone(),
        submitter_org: identity.org.clone(),
        priority: meta.priority.to_string(),
        signed: signed.clone(),
        nonce: order.nonce,
        nonce_expires: order.expires + SKEW,
        total_rounds: config.rounds,
        holds: order.apps.values().map(|blob| blob.root).collect(),
        state: serde_json::to_value(&keep).unwrap_or_default(),
        submitted: now,
    };
    match server.store.insert_job(new).await {
        Ok(Inserted::New) => {}
        Ok(Inserted::Same) => return Ok(json(&Submitted { job: id })),
        Err(error @ StoreError::Exists { .. }) => {
            let problem = Problem::new(ProblemCode::Conflict, error.to_string());
            refused(&problem);
            return Err(problem);
        }
        Err(error) => return Err(stored(&error)),
    }
    server.note(
        "job_submitted",
        &[
            ("user", caller.who.name.as_str().into()),
            ("job", id.to_string().into()),
            ("study", order.study.as_str().into()),
        ],
    );
    if let Err(error) = server.store.purge_nonces(now / 1000).await {
        tracing::warn!(%error, "old nonces are still remembered");
    }
    let row = server.store.job(id).await.map_err(|error| stored(&error))?;
    let row = row.ok_or_else(|| Problem::new(ProblemCode::Internal, "the job is not where it was put"))?;
    let facts = facts::of(&row, signed, order, meta, server.max_restarts);
    server.add(Job::new(Arc::new(facts), keep, JobPhase::Submitted, None, now));
    server.wake.notify_one();
    Ok(json(&Submitted { job: id }))
}

struct Checked {
    order: Order,
    identity: Identity,
    meta: JobMeta,
    config: JobConfig,
}

async fn check(server: &Server, caller: &Caller, signed: &SignedOrder) -> Result<Checked, Problem> {
    server.rights.check(&caller.who, Right::SubmitJob, None)?;
    let identity = check_signature(server, signed)?;
    let order: Order = serde_json::from_str(&signed.order)
        .map_err(|error| invalid("order", format!("the order is not one: {error}")))?;
    if order.version != 1 {
        return Err(Problem {
            found: Some(order.version.to_string()),
            allowed: Some("1".to_owned()),
            ..invalid("order.version", "an order of another version")
        });
    }
    if identity.user() != Some(&order.submitter) || order.submitter != caller.who.name {
        return Err(Problem {
            found: Some(order.submitter.to_string()),
            allowed: Some(caller.who.name.to_string()),
            at: Some("order.submitter".to_owned()),
            ..Problem::new(ProblemCode::Forbidden, "the order is not the caller's own")
        });
    }
    if order.federation != server.federation {
        return Err(Problem {
            found: Some(order.federation.chars().take(80).collect()),
            allowed: Some(server.federation.clone()),
            ..invalid("order.federation", "the order is for another federation")
        });
    }
    if order.study != caller.study {
        return Err(Problem {
            found: Some(order.study.to_string()),
            allowed: Some(caller.study.to_string()),
            ..invalid("order.study", "the order is for another study than the session")
        });
    }
    check_times(&order, server.now() / 1000)?;
    if let Some(origin) = order.cloned_from {
        let row = server.store.job(origin).await.map_err(|error| stored(&error))?;
        if let Some(row) = row.filter(|row| row.study == order.study) {
            server.rights.check(&caller.who, Right::CloneJob, Some((&row.submitter, &row.submitter_org)))?;
        }
    }
    if order.meta.len() > META_LIMIT {
        return Err(Problem {
            allowed: Some(format!("at most {META_LIMIT} bytes")),
            at: Some("order.meta".to_owned()),
            ..Problem::new(ProblemCode::TooLarge, "the meta is too large")
        });
    }
    let meta = JobMeta::parse("meta.json", order.meta.as_bytes()).map_err(|error| refused(&error))?;
    check_deployment(server, caller, &order, &meta)?;
    // An app's command is code, whatever else the app holds.
    server.rights.check(&caller.who, Right::Byoc, Some((&order.submitter, &identity.org)))?;
    let config = check_apps(server, &order, &meta).await?;
    Ok(Checked { order, identity, meta, config })
}

fn refused(error: &polder_core::Error) -> Problem {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Problem {
        code: ProblemCode::Invalid,
        message: error.message().to_owned(),
        file: some(error.file()),
        at: some(error.at()),
        found: some(error.found()),
        allowed: some(error.allowed()),
    }
}

fn check_signature(server: &Server, signed: &SignedOrder) -> Result<Identity, Problem> {
    let unsigned = |why: String| Problem {
        at: Some("order".to_owned()),
        ..Problem::new(ProblemCode::Forbidden, format!("the order's signature is not accepted: {why}"))
    };
    let signature: Signature =
        signed.signature.clone().try_into().map_err(|error| unsigned(format!("{error}")))?;
    let now = jiff::Timestamp::from_millisecond(i64::try_from(server.now()).unwrap_or(i64::MAX))
        .map_err(|error| unsigned(error.to_string()))?;
    let text = signed.order.as_bytes();
    let identity = server
        .kit
        .trust()
        .verify_pem(&signed.certificate, now, ORDER_DOMAIN, text, &signature)
        .map_err(|error| unsigned(error.to_string()))?;
    server.revoked.check(&identity).map_err(|problem| unsigned(problem.message))?;
    Ok(identity)
}

fn check_times(order: &Order, now: u64) -> Result<(), Problem> {
    if order.expires <= now {
        return Err(Problem {
            found: Some(order.expires.to_string()),
            allowed: Some(format!("after {now}")),
            ..invalid("order.expires", "the order has expired")
        });
    }
    if order.issued > now + SKEW {
        return Err(Problem {
            found: Some(order.issued.to_string()),
            allowed: Some(format!("at most {}", now + SKEW)),
            ..invalid("order.issued", "the order comes from the future: check the clocks")
        });
    }
    if order.expires.saturating_sub(order.issued) > LONGEST {
        return Err(Problem {
            found: Some(order.expires.to_string()),
            allowed: Some(format!("at most {LONGEST} s after `issued`")),
            ..invalid("order.expires", "the order would be valid for too long")
        });
    }
    Ok(())
}

/// Order, meta and study speak of the same sites and apps.
fn check_deployment(server: &Server, caller: &Caller, order: &Order, meta: &JobMeta) -> Result<(), Problem> {
    let clients = meta.clients().map(|clients| clients.into_iter().collect::<BTreeSet<SiteName>>());
    // An order may name fewer sites than deploy_map, never others.
    let fits = match (&order.sites, &clients) {
        (OrderSites::All, clients) => clients.is_none(),
        (OrderSites::Named(named), None) => !named.is_empty(),
        (OrderSites::Named(named), Some(clients)) => !named.is_empty() && named.is_subset(clients),
    };
    if !fits {
        return Err(invalid("order.sites", "the order's sites are not those of deploy_map, or some of them"));
    }
    if let OrderSites::Named(named) = &order.sites {
        if let Some(site) = meta.mandatory_clients.iter().find(|site| !named.contains(*site)) {
            return Err(invalid(
                "order.sites",
                format!("site {site}, which is mandatory, is not among them"),
            ));
        }
        if named.len() < usize::try_from(meta.min_clients).unwrap_or(usize::MAX) {
            return Err(Problem {
                found: Some(named.len().to_string()),
                allowed: Some(format!("at least min_clients, which is {}", meta.min_clients)),
                ..invalid("order.sites", "the order names too few sites")
            });
        }
        check_sites(server, caller, named.iter())?;
    }
    check_sites(server, caller, meta.mandatory_clients.iter())?;
    let apps: BTreeSet<&AppName> = meta.deploy_map.keys().collect();
    if apps != order.apps.keys().collect() {
        return Err(invalid("order.apps", "the order's apps are not those of deploy_map"));
    }
    Ok(())
}

/// Every archive is there and keeps the rules; gives the server app's `job.yaml`.
///
/// Archives that break a rule do not stay: no job will ever use them.
async fn check_apps(server: &Server, order: &Order, meta: &JobMeta) -> Result<JobConfig, Problem> {
    let checked = inspect_apps(server, order, meta).await;
    if matches!(&checked, Err(problem) if problem.code == ProblemCode::Invalid) {
        let held = server.store.held(&order.study).await.map_err(|error| stored(&error))?;
        let area = server.blobs.study(&order.study);
        for blob in order.apps.values().filter(|blob| !held.contains(&blob.root)) {
            area.remove(&blob.root);
        }
    }
    checked
}

async fn inspect_apps(server: &Server, order: &Order, meta: &JobMeta) -> Result<JobConfig, Problem> {
    let area = server.blobs.study(&order.study);
    for (app, blob) in &order.apps {
        check_size(blob)?;
        if !area.has(blob) {
            return Err(Problem {
                found: Some(blob.root.to_string()),
                ..invalid("order.apps", format!("the archive of app {app} has not been uploaded"))
            });
        }
    }
    let apps = order.apps.clone();
    let inspected = tokio::task::spawn_blocking(move || {
        let mut out: BTreeMap<AppName, Inspected> = BTreeMap::new();
        for (app, blob) in apps {
            let open =
                std::fs::File::open(area.path(&blob.root)).map_err(|error| format!("app {app}: {error}"))?;
            let file = std::io::BufReader::new(open);
            let found = inspect(file, &Limits::default(), &[polder_core::job::FILE]);
            out.insert(app.clone(), found.map_err(|error| format!("app {app}: {error}"))?);
        }
        Ok::<_, String>(out)
    });
    let inspected = inspected
        .await
        .map_err(|error| Problem::new(ProblemCode::Internal, error.to_string()))?
        .map_err(|why| invalid("order.apps", why))?;
    let server_app = meta
        .app_for(&SiteName::server())
        .ok_or_else(|| invalid("deploy_map", "no app goes to the server"))?;
    let mut of_server = None;
    for (app, found) in &inspected {
        let file = format!("{app}/{}", polder_core::job::FILE);
        let text = found.wanted.get(polder_core::job::FILE).ok_or_else(|| Problem {
            file: Some(file.clone()),
            ..Problem::new(ProblemCode::Invalid, "the file is missing in the app's archive")
        })?;
        let config = JobConfig::parse(&file, text).map_err(|error| refused(&error))?;
        if app == server_app {
            check_disk(server, found, &config, order, meta)?;
            of_server = Some(config);
        }
    }
    of_server.ok_or_else(|| invalid("deploy_map", "no app goes to the server"))
}

/// One model a site and round, the global one and its next must fit on the server's disk, where the size is known.
fn check_disk(
    server: &Server,
    app: &Inspected,
    config: &JobConfig,
    order: &Order,
    meta: &JobMeta,
) -> Result<(), Problem> {
    let Some(model) = &config.initial_model else { return Ok(()) };
    let Some(size) = app.files.get(model) else {
        return Err(Problem {
            file: Some(polder_core::job::FILE.to_owned()),
            found: Some(model.clone()),
            ..invalid("initial_model", "the model is not in the app of the server")
        });
    };
    let sites = match &order.sites {
        OrderSites::Named(named) => named.len() as u64,
        OrderSites::All => u64::from(meta.min_clients),
    };
    let needed = size.saturating_mul(sites + 3);
    match free_bytes(&server.state_dir) {
        Some(free) if free < needed => Err(Problem {
            found: Some(free.to_string()),
            allowed: Some(format!("at least {needed} bytes free: one model a site and round")),
            ..Problem::new(ProblemCode::Busy, "the server's disk is too full for this job")
        }),
        _ => Ok(()),
    }
}
