use super::*;
use proptest::prelude::*;

struct Who {
    name: UserName,
    org: OrgName,
}

fn who(name: &str, org: &str) -> Who {
    Who { name: UserName::new(name).expect("name"), org: OrgName::new(org).expect("org") }
}

impl Who {
    fn person(&self) -> Person<'_> {
        Person { name: &self.name, org: &self.org }
    }
}

fn ask(policy: &Policy, role: UserRole, right: Right, user: &Who, submitter: Option<&Who>) -> Decision {
    let site_org = OrgName::new("org_a").expect("org");
    policy.decide(&Question {
        right,
        command: None,
        user: user.person(),
        role,
        site_org: &site_org,
        submitter: submitter.map(Who::person),
    })
}

fn read(text: &str) -> std::result::Result<Policy, String> {
    Policy::parse("authorization.json", text.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn defaults() {
    let policy = Policy::default();
    let (lead, other) = (who("lead@org_a.com", "org_a"), who("other@org_b.com", "org_b"));
    let colleague = who("x@org_a.com", "org_a");
    let may = |role, right, submitter| ask(&policy, role, right, &lead, submitter).allowed;
    assert!(may(UserRole::Lead, Right::SubmitJob, None));
    assert!(may(UserRole::Lead, Right::Byoc, None));
    assert!(may(UserRole::Lead, Right::ManageJob, Some(&lead)));
    assert!(!may(UserRole::Lead, Right::ManageJob, Some(&other)));
    assert!(!may(UserRole::Lead, Right::ManageJob, None), "nobody's job is nobody's own");
    assert!(!may(UserRole::OrgAdmin, Right::SubmitJob, None));
    assert!(may(UserRole::OrgAdmin, Right::DownloadJob, Some(&colleague)));
    assert!(!may(UserRole::OrgAdmin, Right::DownloadJob, Some(&other)));
    assert!(may(UserRole::OrgAdmin, Right::Operate, None));
    assert!(may(UserRole::Member, Right::View, None));
    assert!(!may(UserRole::Member, Right::SubmitJob, None));
    for role in UserRole::ALL {
        assert!(!may(role, Right::ShellCommands, Some(&lead)), "{role} has no shell");
    }
    let no = ask(&policy, UserRole::Lead, Right::ManageJob, &lead, Some(&other));
    assert_eq!(no.rule, "lead.manage_job: n:submitter");
    assert_eq!(read(&policy.to_string()), Ok(policy));
}

#[test]
fn grammar() {
    let policy = read(
        r#"{"format_version": "1.0", "permissions": {
            "Project_Admin": "any",
            "lead": {"view": ["not o:org_b", "not n:eve@org_a.com"], "manage_job": ["n:submitter", "O:Org_A"],
                     "abort_job": "none"}}}"#,
    )
    .expect("a policy");
    let (lead, eve, bob) =
        (who("lead@org_a.com", "org_a"), who("Eve@org_a.com", "org_a"), who("bob@org_b.com", "org_b"));
    let may = |right, user| ask(&policy, UserRole::Lead, right, user, None).allowed;
    assert!(may(Right::View, &lead) && !may(Right::View, &eve) && !may(Right::View, &bob));
    assert!(may(Right::ManageJob, &lead) && !may(Right::ManageJob, &bob));
    assert!(ask(&policy, UserRole::ProjectAdmin, Right::ShellCommands, &bob, None).allowed);
    let site_org = OrgName::new("x").expect("org");
    let question = Question {
        right: Right::ManageJob,
        command: Some("abort_job"),
        user: lead.person(),
        role: UserRole::Lead,
        site_org: &site_org,
        submitter: None,
    };
    assert_eq!(policy.decide(&question).rule, "lead.abort_job: none");
    assert_eq!(read(&policy.to_string()), Ok(policy));
}

#[test]
fn refusals() {
    for (text, part) in [
        ("{}", "format_version: is missing"),
        (r#"{"format_version": 1.0, "permissions": {"lead": "any"}}"#, "is not a version"),
        (r#"{"format_version": "1.0", "permissions": {}}"#, "permissions: is empty"),
        (r#"{"format_version": "1.0", "permissions": {"lead": []}}"#, "lead: is empty"),
        (r#"{"format_version": "1.0", "permissions": {"lead": {"view": "x:y"}}}"#, "is not a condition"),
        (r#"{"format_version": "1.0", "permissions": {"lead": {"veiw": "any"}}}"#, "is `view` meant?"),
        (r#"{"format_version": "1.0", "permissions": {"lead": "any", "Lead": "none"}}"#, "stands twice"),
    ] {
        let error = read(text).expect_err(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn prints_and_reads_back(
        roles in prop::collection::btree_map(
            prop::sample::select(vec!["project_admin", "org_admin", "lead", "member"]),
            prop::collection::btree_map(
                prop::sample::select(RIGHTS.map(|(word, _)| word).to_vec()),
                prop::collection::vec("(not )?(any|none|o:site|o:submitter|o:[a-z]{1,6}|n:submitter|n:[a-z@.]{1,8})", 1..3),
                0..4,
            ),
            1..4,
        )
    ) {
        let permissions = roles.iter().map(|(role, rights)| {
            let rights = rights.iter().map(|(right, rule)| {
                (right, Value::seq(rule.iter().map(|c| Value::from(c.as_str()))))
            });
            (role, Value::map(rights))
        });
        let value = Value::map([("format_version", Value::from("1.0")), ("permissions", Value::map(permissions))]);
        let policy = read(&crate::value::to_json(&value)).map_err(TestCaseError::fail)?;
        prop_assert_eq!(read(&policy.to_string()), Ok(policy));
    }

    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in ".{0,20}") {
        let _ = Policy::parse("authorization.json", &bytes);
        if let Some(condition) = condition(&text) {
            prop_assert_eq!(super::condition(&condition.to_string()), Some(condition));
        }
    }
}
