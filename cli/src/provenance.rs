//! Checking how a result came about: the server's signature, and that these are the files it speaks of.

use crate::output::Failure;
use jiff::Timestamp;
use polder_api::ProblemCode;
use polder_api::order::{PROVENANCE_DOMAIN, SignedProvenance};
use polder_transport::identity::{Kind, Signature, Trust};
use polder_words::{BlobRef, JobId};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The name of the file among a job's results.
pub(crate) const FILE: &str = "provenance.json";

/// What of the signed text is compared.
#[derive(Deserialize)]
struct Statement {
    job: JobId,
    results: BTreeMap<String, BlobRef>,
}

/// Checks a provenance file against the project CA, the job and the other files; gives the signer's name.
pub(crate) fn verify(
    bytes: &[u8],
    trust: &Trust,
    job: &JobId,
    files: &BTreeMap<String, BlobRef>,
    now: Timestamp,
) -> Result<String, Failure> {
    let wrong = |why: String| {
        Failure::new(ProblemCode::Invalid, why)
            .file(FILE)
            .hint("do not trust these files; ask the operator of the federation")
    };
    let file: SignedProvenance =
        serde_json::from_slice(bytes).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let signature = Signature::try_from(file.signature)
        .map_err(|error| wrong(format!("its signature cannot be read: {error}")))?;
    let signer = trust
        .verify_pem(&file.certificate, now, PROVENANCE_DOMAIN, file.provenance.as_bytes(), &signature)
        .map_err(|error| wrong(format!("is not signed by this federation: {error}")))?;
    if signer.kind() != Kind::Server {
        return Err(wrong(format!("is signed by {}, not by the server", signer.principal)));
    }
    let said: Statement = serde_json::from_str(&file.provenance)
        .map_err(|error| wrong(format!("what is signed cannot be read: {error}")))?;
    if said.job != *job {
        return Err(wrong("speaks of another job".to_owned()).found(said.job.to_string(), job.to_string()));
    }
    for (name, blob) in files.iter().filter(|(name, _)| name.as_str() != FILE) {
        match said.results.get(name) {
            Some(signed) if signed == blob => {}
            Some(signed) => {
                return Err(wrong(format!("speaks of another {name}"))
                    .found(blob.root.to_string(), signed.root.to_string()));
            }
            None => return Err(wrong(format!("does not speak of {name}"))),
        }
    }
    Ok(signer.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polder_transport::Endpoint;
    use polder_transport::identity::{Kit, Participant, Principal, ProjectPlan, provision};
    use polder_words::{Hash, UserRole};
    use serde_json::json;

    const JOB: &str = "3f2a0c11d2e3f405162738495a6b7c8d";

    fn kits() -> (tempfile::TempDir, Kit, Kit) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let participant = |principal| Participant {
            principal,
            org: "host".parse().expect("a name"),
            hosts: Vec::new(),
            request: None,
        };
        let plan = ProjectPlan {
            federation: "net".to_owned(),
            server: Endpoint::new("localhost", 8443).expect("a good endpoint"),
            days: 10,
            participants: vec![
                participant(Principal::Server("localhost".parse().expect("a name"))),
                participant(Principal::User("u@a".parse().expect("a name"), UserRole::Lead)),
            ],
        };
        let now = Timestamp::now();
        provision(&plan, dir.path(), now).expect("provisioned");
        let open = |name: &str| Kit::open(&dir.path().join("kits").join(name), now).expect("a good kit");
        let kits = (open("localhost"), open("u@a"));
        (dir, kits.0, kits.1)
    }

    fn blob(byte: u8) -> BlobRef {
        BlobRef { root: Hash([byte; 32]), size: 3 }
    }

    fn signed(kit: &Kit, text: &str) -> Vec<u8> {
        let signature = kit.sign(PROVENANCE_DOMAIN, text.as_bytes()).expect("signed").to_string();
        let file = json!({"provenance": text, "domain": PROVENANCE_DOMAIN, "signature": signature,
            "certificate": kit.certificate_pem()});
        file.to_string().into_bytes()
    }

    #[test]
    fn only_what_the_server_signed_about_these_files_is_believed() {
        let (_dir, server, user) = kits();
        let text = json!({"job": JOB, "results": {"model.safetensors": blob(1)}}).to_string();
        let job: JobId = JOB.parse().expect("an id");
        let check = |bytes: &[u8], job: &JobId, model: u8| {
            let files = [("model.safetensors".to_owned(), blob(model)), (FILE.to_owned(), blob(9))].into();
            verify(bytes, user.trust(), job, &files, Timestamp::now()).map_err(|failure| failure.sentence())
        };
        let good = signed(&server, &text);
        assert_eq!(check(&good, &job, 1), Ok("localhost".to_owned()));
        let refused = |bytes: &[u8], job: &JobId, model, expected: &str| {
            let said = check(bytes, job, model).expect_err(expected);
            assert!(said.contains(expected), "{said}");
        };
        refused(&good, &job, 2, "another model.safetensors");
        refused(&good, &JobId([7; 16]), 1, "another job");
        refused(&signed(&user, &text), &job, 1, "not by the server");
        let altered = String::from_utf8(good).expect("text").replace("size\\\":3", "size\\\":4");
        refused(altered.as_bytes(), &job, 1, "is not signed by this federation");
        refused(b"{}", &job, 1, "cannot be read");
    }
}
