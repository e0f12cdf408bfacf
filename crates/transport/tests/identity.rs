//! Provisioning, kits, certificates, signatures and revocation as an operator meets them.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Federation, plan, site, user};
use jiff::Timestamp;
use polder_transport::identity::{
    CertificateRequest, Identity, IdentityError, Kind, Kit, KitError, KitInfo, Principal, ProvisionError,
    RequestError, RevocationList, Revocations, Trust, WorkerAuthority, WorkerCertificate, WorkerKey,
    provision,
};
use polder_words::{LaunchId, OrgName, SiteName, UserName, UserRole};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

fn days(n: u64) -> Duration {
    Duration::from_secs(n * 86_400)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            for (name, bytes) in contents(&path) {
                all.insert(format!("{}/{name}", path.file_name().unwrap().to_str().unwrap()), bytes);
            }
        } else {
            all.insert(path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap());
        }
    }
    all
}

#[test]
fn a_kit_says_who_its_owner_is() {
    let federation = Federation::new();
    let kit = federation.kit("lead@org_a.com");
    assert_eq!(kit.identity().kind(), Kind::User);
    assert_eq!(kit.identity().name(), "lead@org_a.com");
    assert_eq!(kit.identity().role(), Some(UserRole::Lead));
    assert_eq!(kit.identity().org.as_str(), "org_a");
    assert_eq!(kit.info().server.to_string(), "https://fl.example.org:8443");
    assert_eq!(kit.info().federation, "cancer-net");
    for name in ["lead@org_a.com", "hospital-a", "fl.example.org"] {
        assert_eq!(mode(&federation.path(name)), 0o700);
        assert_eq!(mode(&federation.path(name).join("key.pem")), 0o600);
    }
    assert_eq!(mode(&federation.dir.path().join("ca/ca.key")), 0o600);
    assert_eq!(mode(&federation.dir.path().join("ca")), 0o700);
}

#[test]
fn a_participant_is_added_without_touching_the_others() {
    let federation = Federation::new();
    let before = contents(&federation.dir.path().join("kits"));
    let mut plan = plan();
    plan.participants.push(site("university"));
    let done = provision(&plan, federation.dir.path(), Timestamp::now()).unwrap();
    assert_eq!(done.added, [site("university").principal]);
    assert_eq!(done.kept.len(), 3);
    assert!(done.differing.is_empty());
    let after = contents(&federation.dir.path().join("kits"));
    for (name, bytes) in &before {
        assert_eq!(after.get(name), Some(bytes), "{name}");
    }
    assert_eq!(federation.kit("university").identity().kind(), Kind::Site);

    // Once more: nothing happens at all.
    let again = provision(&plan, federation.dir.path(), Timestamp::now()).unwrap();
    assert!(again.added.is_empty());
    assert_eq!(contents(&federation.dir.path().join("kits")), after);
}

#[test]
fn what_a_kept_kit_says_otherwise_is_told() {
    let federation = Federation::new();
    let mut plan = plan();
    plan.participants[2] = user("lead@org_a.com", UserRole::OrgAdmin);
    let done = provision(&plan, federation.dir.path(), Timestamp::now()).unwrap();
    assert_eq!(done.differing.len(), 1);
    assert!(done.differing[0].contains("role is lead in its kit and org_admin in the project"), "{done:?}");
}

#[test]
fn names_are_unique_and_there_is_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut twice = plan();
    twice.participants.push(site("Hospital-A"));
    assert!(matches!(provision(&twice, dir.path(), Timestamp::now()), Err(ProvisionError::Twice(_))));
    let mut none = plan();
    none.participants.remove(0);
    assert!(matches!(provision(&none, dir.path(), Timestamp::now()), Err(ProvisionError::Servers(0))));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a refused plan leaves nothing");
}

#[test]
fn an_altered_kit_is_refused_and_the_error_names_the_file() {
    let federation = Federation::new();
    let dir = federation.path("lead@org_a.com");
    let now = Timestamp::now();
    let good = fs::read_to_string(dir.join("kit.json")).unwrap();

    fs::write(dir.join("kit.json"), good.replace("8443", "8444")).unwrap();
    let error = Kit::open(&dir, now).unwrap_err();
    assert!(matches!(error, KitError::Signature { .. }), "{error}");
    assert!(error.to_string().contains("kit.json"), "{error}");

    fs::write(dir.join("kit.json"), good.replace("\"name\"", "\"nane\"")).unwrap();
    let error = Kit::open(&dir, now).unwrap_err().to_string();
    assert!(error.contains("kit.json") && error.contains("nane"), "{error}");
    fs::write(dir.join("kit.json"), &good).unwrap();
    Kit::open(&dir, now).unwrap();

    // Another's key and certificate, each on its own.
    let other = federation.path("hospital-a");
    let key = fs::read(dir.join("key.pem")).unwrap();
    fs::copy(other.join("key.pem"), dir.join("key.pem")).unwrap();
    assert!(Kit::open(&dir, now).unwrap_err().to_string().contains("not the key of cert.pem"));
    fs::write(dir.join("key.pem"), key).unwrap();
    fs::copy(other.join("cert.pem"), dir.join("cert.pem")).unwrap();
    let error = Kit::open(&dir, now).unwrap_err().to_string();
    assert!(error.contains("kit.json is of user lead@org_a.com, cert.pem of site hospital-a"), "{error}");
}

#[test]
fn a_key_others_can_read_is_refused() {
    let federation = Federation::new();
    let dir = federation.path("hospital-a");
    fs::set_permissions(dir.join("key.pem"), fs::Permissions::from_mode(0o640)).unwrap();
    let error = Kit::open(&dir, Timestamp::now()).unwrap_err().to_string();
    assert!(error.contains("key.pem") && error.contains("0640") && error.contains("chmod 600"), "{error}");
}

#[test]
fn the_wrong_kind_of_kit_is_refused() {
    let federation = Federation::new();
    let error = Kit::open_as(&federation.path("hospital-a"), Kind::User, Timestamp::now()).unwrap_err();
    assert!(error.to_string().contains("kit of site hospital-a; needed is one of a user"), "{error}");
}

#[test]
fn certificates_are_good_for_their_time_and_their_federation() {
    let federation = Federation::new();
    let kit = federation.kit("hospital-a");
    let trust = kit.trust();
    let now = Timestamp::now();
    assert!(trust.check(kit.certificate(), now).is_ok());
    let late = trust.check(kit.certificate(), now + days(366)).unwrap_err();
    assert!(matches!(late, IdentityError::Expired { .. }), "{late}");
    let early = trust.check(kit.certificate(), now - days(1)).unwrap_err();
    assert!(matches!(early, IdentityError::NotYetValid { .. }), "{early}");
    let other = Federation::new();
    let foreign = trust.check(other.kit("hospital-a").certificate(), now).unwrap_err();
    assert!(matches!(foreign, IdentityError::Foreign { .. }), "{foreign}");
}

#[test]
fn a_signature_is_tied_to_its_signer() {
    let federation = Federation::new();
    let (lead, site) = (federation.kit("lead@org_a.com"), federation.kit("hospital-a"));
    let now = Timestamp::now();
    let signature = lead.sign("polder-order-v1", b"an order").unwrap();
    let trust = Trust::from_pem(&lead.trust().pem()).unwrap();
    let who =
        trust.verify_pem(lead.certificate_pem(), now, "polder-order-v1", b"an order", &signature).unwrap();
    assert_eq!(who.name(), "lead@org_a.com");
    assert!(trust.verify(lead.certificate(), now, "polder-order-v1", b"another", &signature).is_err());
    assert!(trust.verify(site.certificate(), now, "polder-order-v1", b"an order", &signature).is_err());
    assert!(
        trust
            .verify(lead.certificate(), now + days(400), "polder-order-v1", b"an order", &signature)
            .is_err()
    );
}

#[test]
fn a_key_made_at_the_site_never_leaves_it() {
    let federation = Federation::new();
    let now = Timestamp::now();
    let at_site = tempfile::tempdir().unwrap();
    let principal = Principal::Site(SiteName::new("clinic").unwrap());
    let org = OrgName::new("org_a").unwrap();
    let request = CertificateRequest::make(at_site.path(), &principal, &org).unwrap();
    assert_eq!(mode(&at_site.path().join("key.pem")), 0o600);
    assert!(matches!(
        CertificateRequest::make(at_site.path(), &principal, &org),
        Err(RequestError::Exists(_))
    ));

    // For another name it is refused.
    let mut plan = plan();
    plan.participants.push(site("other"));
    plan.participants[3].request = Some(request.clone());
    let error = provision(&plan, federation.dir.path(), now).unwrap_err();
    assert!(error.to_string().contains("is for \"clinic\", not for \"other\""), "{error}");

    plan.participants[3] = site("clinic");
    plan.participants[3].request = Some(request);
    provision(&plan, federation.dir.path(), now).unwrap();
    let kit_dir = federation.path("clinic");
    assert!(!kit_dir.join("key.pem").exists());
    let kit = CertificateRequest::complete(at_site.path(), &kit_dir, now).unwrap();
    assert_eq!(kit.identity().name(), "clinic");
    assert_eq!(mode(&kit_dir.join("key.pem")), 0o600);
}

#[test]
fn a_request_whose_maker_lacks_the_key_is_refused() {
    let at_site = tempfile::tempdir().unwrap();
    let principal = Principal::Site(SiteName::new("clinic").unwrap());
    let request =
        CertificateRequest::make(at_site.path(), &principal, &OrgName::new("org_a").unwrap()).unwrap();
    // One flipped character somewhere in the base64 body breaks the structure or the signature.
    let at = request.find('\n').unwrap() + 100;
    let mut bytes = request.into_bytes();
    bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
    assert!(CertificateRequest::parse(&String::from_utf8(bytes).unwrap()).is_err());
}

#[test]
fn revocation_lists_are_signed_and_only_grow() {
    let federation = Federation::new();
    let authority = federation.authority();
    let now = Timestamp::now();
    let kit = federation.kit("lead@org_a.com");
    let revocations = Revocations::new(&authority.revoked().unwrap());
    assert!(!revocations.is_revoked(kit.identity()));
    let first = authority.revoked().unwrap();
    let list = authority.revoke("lead@org_a.com", "left", now).unwrap();
    assert_eq!(list.number, 1);
    let signed = authority.revoked_signed().unwrap();
    let trust = kit.trust();
    let read = RevocationList::parse(&signed, Path::new("revoked.json"), trust).unwrap();
    assert_eq!(read, list);
    revocations.replace(&read).unwrap();
    assert!(revocations.is_revoked(kit.identity()));
    assert!(!revocations.is_revoked(federation.kit("hospital-a").identity()));
    assert!(revocations.replace(&first).unwrap_err().to_string().contains("older"));
    assert!(authority.revoke("nobody", "x", now).unwrap_err().to_string().contains("nobody"));

    let altered = signed.replace("left", "lept");
    assert!(RevocationList::parse(&altered, Path::new("revoked.json"), trust).is_err());
    let foreign = Federation::new();
    assert!(RevocationList::parse(&signed, Path::new("r"), foreign.kit("hospital-a").trust()).is_err());
}

fn launch(attempt: u32) -> LaunchId {
    format!("00112233445566778899aabbccddeeff.hospital-a.client.{attempt}").parse().unwrap()
}

#[test]
fn a_worker_ca_lasts_and_names_launches() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let authority = WorkerAuthority::open_or_create(&dir.path().join("ca"), now).unwrap();
    let pin = authority.pin();
    drop(authority);
    let authority = WorkerAuthority::open_or_create(&dir.path().join("ca"), now).unwrap();
    assert_eq!(authority.pin(), pin);
    assert_eq!(mode(&dir.path().join("ca/ca.key")), 0o600);

    let key = WorkerKey::generate(&launch(2)).unwrap();
    let pem = authority.issue(key.request(), &launch(2), now, now + days(1)).unwrap();
    let der = pem_der(&pem);
    let read = WorkerCertificate::from_der(&der).unwrap();
    assert_eq!(read.launch, launch(2));
    assert_eq!(read.key, key.key().public().pin());
    assert_eq!(CertificateRequest::parse(key.request()).unwrap().key.pin(), read.key);
    // A request made for one launch is not signed for another.
    assert!(authority.issue(key.request(), &launch(3), now, now + days(1)).is_err());
}

fn pem_der(pem: &str) -> Vec<u8> {
    use rustls_pki_types::pem::PemObject as _;
    rustls_pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_a_certificate_is_issued_for_is_read_from_it(
        name in "[a-z0-9][a-z0-9._+@-]{0,60}",
        org in "[A-Za-z0-9][A-Za-z0-9_.-]{0,40}[a-z0-9]",
        role in prop::sample::select(UserRole::ALL.to_vec()),
        user: bool,
    ) {
        let org = OrgName::new(&org);
        prop_assume!(org.is_ok());
        let principal = if user {
            UserName::new(&name).map(|name| Principal::User(name, role))
        } else {
            SiteName::new(&name).map(Principal::Site)
        };
        prop_assume!(principal.is_ok());
        let (org, principal) = (org.unwrap(), principal.unwrap());
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let authority =
            polder_transport::identity::Authority::create(&dir.path().join("ca"), "net", now).unwrap();
        let key = polder_transport::identity::PrivateKey::generate().unwrap();
        let pem = authority.issue(&principal, &org, &[], &key.public(), now, 1).unwrap();
        let identity = authority.trust().check(&pem_der(&pem).into(), now).unwrap();
        prop_assert_eq!(&identity.principal, &principal);
        prop_assert_eq!(&identity.org, &org);
        let issued = authority.issued().unwrap();
        prop_assert_eq!(&issued[0].serial, &identity.serial);
        prop_assert_eq!(issued[0].not_after.as_second(), identity.not_after.as_second());
    }

    #[test]
    fn certificates_of_any_bytes_do_not_panic(bytes: Vec<u8>, flip in any::<prop::sample::Index>()) {
        let _ = Identity::from_der(&bytes);
        let _ = WorkerCertificate::from_der(&bytes);
        thread_local!(static GOOD: Vec<u8> = Federation::new().kit("hospital-a").certificate().to_vec());
        let mut good = GOOD.with(Clone::clone);
        let at = flip.index(good.len());
        good[at] ^= 0x55;
        let _ = Identity::from_der(&good);
    }

    #[test]
    fn kit_json_prints_back(
        federation in "\\PC{0,20}", name in "[a-z0-9.@-]{1,30}", port in 1u16.., role: bool,
    ) {
        let info = KitInfo {
            version: 1,
            federation,
            name,
            kind: Kind::User,
            org: OrgName::new("o").unwrap(),
            role: role.then_some(UserRole::Member),
            server: polder_transport::Endpoint::new("h", port).unwrap(),
        };
        prop_assert_eq!(serde_json::from_str::<KitInfo>(&info.to_json()).unwrap(), info);
    }
}
