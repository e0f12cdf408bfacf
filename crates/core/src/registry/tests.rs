use super::*;
use proptest::prelude::*;

fn study(name: &str) -> StudyName {
    StudyName::new(name).expect("study")
}
fn site(name: &str) -> SiteName {
    SiteName::new(name).expect("site")
}
fn org(name: &str) -> OrgName {
    OrgName::new(name).expect("org")
}
fn user(name: &str) -> UserName {
    UserName::new(name).expect("user")
}

fn directory() -> Directory {
    Directory {
        sites: [("a1", "a"), ("a2", "a"), ("b1", "b")].map(|(s, o)| (site(s), org(o))).into(),
        users: Some(["boss", "admin-a", "admin-b", "lead"].map(user).to_vec()),
    }
}

struct Person(UserName, OrgName, UserRole);
impl Person {
    fn new(name: &str, of: &str, role: UserRole) -> Self {
        Self(user(name), org(of), role)
    }
    fn caller(&self) -> Caller<'_> {
        Caller { name: &self.0, org: &self.1, role: self.2 }
    }
}

fn register(name: &str, of: &str, sites: &[&str]) -> Change {
    Change::Register {
        study: study(name),
        site_orgs: [(org(of), sites.iter().map(|s| site(s)).collect())].into(),
        users: vec![],
    }
}

#[test]
fn an_org_admin_stays_at_home() {
    let mut registry = Registry::default();
    let (a, b) =
        (Person::new("admin-a", "a", UserRole::OrgAdmin), Person::new("admin-b", "b", UserRole::OrgAdmin));
    registry.apply(&a.caller(), &directory(), &register("s", "a", &["a1"]), None).expect("own sites");
    let s = study("s");
    assert_eq!(registry.show(&b.caller(), &s), Err(RegistryError::NotFound { study: s.clone() }));
    let foreign = Change::AddSite { study: s.clone(), org: org("b"), site: site("b1") };
    assert!(matches!(
        registry.apply(&a.caller(), &directory(), &foreign, None),
        Err(RegistryError::NotAllowed { .. })
    ));
    let boss = Person::new("boss", "host", UserRole::ProjectAdmin);
    registry.apply(&boss.caller(), &directory(), &foreign, Some(1)).expect("a project admin may");
    assert_eq!(registry.show(&b.caller(), &s).map(|s| s.version), Ok(2), "visible by the own site");
    let take = Change::RemoveSite { study: s.clone(), site: site("a1") };
    assert!(registry.apply(&b.caller(), &directory(), &take, None).is_err());
    let remove = Change::Remove { study: s, jobs: 0 };
    assert!(matches!(
        registry.apply(&a.caller(), &directory(), &remove, None),
        Err(RegistryError::NotAllowed { allowed: "project_admin", .. })
    ));
}

#[test]
fn refusals_leave_everything_as_it_was() {
    let mut registry = Registry::default();
    let boss = Person::new("boss", "host", UserRole::ProjectAdmin);
    registry.apply(&boss.caller(), &directory(), &register("s", "a", &["a1"]), None).expect("registered");
    let before = registry.clone();
    let s = study("s");
    let mut refuse = |change: Change, from: Option<u64>| {
        registry.apply(&boss.caller(), &directory(), &change, from).expect_err("refused").to_string()
    };
    assert_eq!(refuse(register("s", "a", &[]), None), "study s exists already");
    assert_eq!(
        refuse(register("default", "a", &[]), None),
        "study name default is reserved; allowed: other names"
    );
    assert_eq!(refuse(register("t", "a", &["b1"]), None), "site b1 belongs to b, not to a");
    assert_eq!(refuse(register("t", "a", &["x"]), None), "site x is not a site of the federation");
    let add = |name: &str| Change::AddUser { study: s.clone(), user: user(name) };
    assert_eq!(refuse(add("eve"), None), "user eve is not a user of the federation");
    assert_eq!(refuse(add("boss"), None), "user boss is in study s already");
    assert_eq!(refuse(add("lead"), Some(7)), "study s was changed meanwhile: its version is 1, not 7");
    assert_eq!(
        refuse(Change::Remove { study: s.clone(), jobs: 3 }, None),
        "study s has 3 jobs and cannot be removed; delete them first"
    );
    assert_eq!(
        refuse(Change::RemoveUser { study: study("none"), user: user("lead") }, None),
        "study none is not found"
    );
    assert_eq!(registry, before);
}

#[test]
fn a_removed_study_comes_back_with_a_higher_version() {
    let mut registry = Registry::default();
    let boss = Person::new("boss", "host", UserRole::ProjectAdmin);
    let (caller, directory) = (boss.caller(), directory());
    registry.apply(&caller, &directory, &register("s", "a", &[]), None).expect("registered");
    registry
        .apply(&caller, &directory, &Change::Remove { study: study("s"), jobs: 0 }, None)
        .expect("removed");
    let again = registry.apply(&caller, &directory, &register("s", "a", &[]), None).expect("again");
    assert_eq!(again.version, 2);
}

#[test]
fn members_see_their_studies_and_change_nothing() {
    let mut registry = Registry::default();
    let boss = Person::new("boss", "host", UserRole::ProjectAdmin);
    let lead = Person::new("lead", "a", UserRole::Lead);
    let (s, directory) = (study("s"), directory());
    registry.apply(&boss.caller(), &directory, &register("s", "a", &["a1"]), None).expect("registered");
    registry.apply(&boss.caller(), &directory, &register("t", "a", &["a1"]), None).expect("registered");
    let add = Change::AddUser { study: s.clone(), user: user("lead") };
    registry.apply(&boss.caller(), &directory, &add, None).expect("added");
    let seen: Vec<&str> = registry.list(&lead.caller()).into_iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(seen, ["s"]);
    let leave = Change::RemoveUser { study: s, user: user("boss") };
    assert!(matches!(
        registry.apply(&lead.caller(), &directory, &leave, None),
        Err(RegistryError::NotAllowed { .. })
    ));
}

proptest! {
    #[test]
    fn a_site_is_in_a_study_once_and_under_its_own_organisation(
        steps in prop::collection::vec((0usize..3, 0usize..4, 0usize..3, 0usize..3, 0usize..3), 0..40)
    ) {
        let people = [
            Person::new("boss", "host", UserRole::ProjectAdmin),
            Person::new("admin-a", "a", UserRole::OrgAdmin),
            Person::new("lead", "b", UserRole::Lead),
        ];
        let (sites, orgs, directory) = (["a1", "a2", "b1"], ["a", "b", "host"], directory());
        let mut registry = Registry::default();
        for (who, what, which_site, which_org, which_study) in steps {
            let name = study(["s", "t", "u"][which_study]);
            let (s, o) = (site(sites[which_site]), org(orgs[which_org]));
            let change = match what {
                0 => Change::Register { study: name.clone(), site_orgs: [(o, vec![s])].into(), users: vec![] },
                1 => Change::AddSite { study: name.clone(), org: o, site: s },
                2 => Change::RemoveSite { study: name.clone(), site: s },
                _ => Change::Remove { study: name.clone(), jobs: 0 },
            };
            let before = registry.studies.get(&name).map_or(0, |s| s.version);
            if registry.apply(&people[who].caller(), &directory, &change, None).is_ok() {
                prop_assert!(people[who].2 != UserRole::Lead);
                if let Some(after) = registry.studies.get(&name) {
                    prop_assert!(after.version > before);
                }
            }
            for entry in registry.studies.values() {
                for (org, sites) in &entry.site_orgs {
                    for site in sites {
                        prop_assert_eq!(directory.sites.get(site), Some(org));
                    }
                }
                let mut all = entry.sites();
                let count = all.len();
                all.dedup();
                prop_assert_eq!(all.len(), count);
            }
        }
        let text = serde_json::to_string(&registry).expect("JSON");
        prop_assert_eq!(serde_json::from_str::<Registry>(&text).expect("reads back"), registry);
    }
}
