//! `project.yml`, api version 4: who takes part in a federation, and the studies it begins with.

use crate::error::Result;
use crate::value::{At, Fields, Value, from_bytes, to_yaml};
use indexmap::IndexMap;
use polder_words::{OrgName, SiteName, StudyName, UserName, UserRole};
use std::collections::HashSet;
use std::fmt;

/// The file's usual name.
pub const FILE: &str = "project.yml";
/// The name no study may have: FLARE's word for all sites and users without a study.
pub const RESERVED_STUDY: &str = "default";

/// The server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The host name sites and users dial.
    pub name: SiteName,
    /// Its organisation.
    pub org: OrgName,
    /// The port of everything (`port`, or FLARE's `fed_learn_port`). Default 8443.
    pub port: u16,
    /// Further names and addresses its certificate is for.
    pub host_names: Vec<String>,
}

/// A site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Name.
    pub name: SiteName,
    /// Its organisation.
    pub org: OrgName,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: UserName,
    /// Organisation.
    pub org: OrgName,
    /// What the user may do by default.
    pub role: UserRole,
}

/// A study as the federation begins with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Study {
    /// Sites by organisation.
    pub site_orgs: IndexMap<OrgName, Vec<SiteName>>,
    /// Its members.
    pub admins: Vec<UserName>,
}

/// `project.yml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// The federation's name.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// The server.
    pub server: Server,
    /// The sites.
    pub sites: Vec<Site>,
    /// The users.
    pub users: Vec<User>,
    /// The studies.
    pub studies: IndexMap<StudyName, Study>,
    /// What people should know although it is allowed.
    pub warnings: Vec<String>,
}

/// Keys of FLARE's provisioning that mean nothing here.
const IGNORED: [&str; 3] = ["builders", "packages", "cert_builder"];
/// Keys of FLARE's participants that mean nothing here.
const IGNORED_OF_PARTICIPANT: [&str; 11] = [
    "admin_port",
    "allow_log_streaming",
    "capacity",
    "components",
    "connect_to",
    "connection_security",
    "custom_ca_cert",
    "default_host",
    "enable_byoc",
    "listening_host",
    "scheme",
];

impl Project {
    /// Reads `project.yml`.
    ///
    /// # Errors
    /// When it is not YAML, a key is unknown or missing, a participant stands twice, or a study names somebody
    /// who does not take part.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        let value = from_bytes(file, bytes)?;
        let at = At::root(file, &value);
        let mut known = vec!["api_version", "name", "description", "participants", "studies"];
        known.extend(IGNORED);
        let fields = at.fields(&known)?;
        let version = fields.need("api_version", "4")?;
        if version.value().as_int().and_then(|int| int.as_i64()) != Some(4) {
            return Err(version.refuse("is not a version this program reads", "4"));
        }
        let name = fields.need("name", "the federation's name")?;
        let name_text = name.clean_text()?;
        if name_text.len() > 64
            || !name_text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ' '))
        {
            return Err(
                name.refuse("is not a federation's name", "1 to 64 letters, digits, blanks, `.`, `_` or `-`")
            );
        }
        let mut warnings = Vec::new();
        for key in IGNORED.iter().filter(|key| fields.has(key)) {
            warnings.push(format!("{key}: FLARE's provisioning, ignored"));
        }
        let participants = fields.need("participants", "a list of participants")?;
        let (server, sites, users) = read_participants(&participants, &mut warnings)?;
        let mut out = Self {
            name: name_text.to_owned(),
            description: fields
                .given("description")
                .map(|at| at.any_text().map(str::to_owned))
                .transpose()?,
            server,
            sites,
            users,
            studies: IndexMap::new(),
            warnings,
        };
        if let Some(studies) = fields.given("studies") {
            for (name, entry) in studies.entries()? {
                let study = StudyName::new(name)
                    .map_err(|error| entry.refuse("is under a name that is not a study's", error.allowed))?;
                if name == RESERVED_STUDY {
                    return Err(entry.refuse("is under a reserved name", "names other than `default`"));
                }
                let read = out.read_study(&entry)?;
                out.studies.insert(study, read);
            }
        }
        Ok(out)
    }

    fn read_study(&self, at: &At<'_>) -> Result<Study> {
        let mut out = Study::default();
        if at.value().is_null() {
            return Ok(out);
        }
        let fields = at.fields(&["site_orgs", "admins"])?;
        if let Some(site_orgs) = fields.given("site_orgs") {
            for (org, sites_at) in site_orgs.entries()? {
                let org = OrgName::new(org).map_err(|error| {
                    sites_at.refuse("is under a name that is no organisation's", error.allowed)
                })?;
                let takes_part = org == self.server.org
                    || self.sites.iter().any(|site| site.org == org)
                    || self.users.iter().any(|user| user.org == org);
                if !takes_part {
                    return Err(sites_at.refuse(
                        "is under an organisation that does not take part",
                        "organisations of participants",
                    ));
                }
                let mut sites: Vec<SiteName> = Vec::new();
                for item in sites_at.seq()? {
                    let name: SiteName = item.name()?;
                    let Some(site) = self.sites.iter().find(|site| site.name == name) else {
                        return Err(item.refuse(
                            "is not a site of the federation",
                            "names of participants of type client",
                        ));
                    };
                    if site.org != org {
                        let allowed = format!("sites of {org}; this one is of {}", site.org);
                        return Err(item.refuse("is a site of another organisation", &allowed));
                    }
                    if sites.contains(&name) {
                        return Err(item.refuse("stands twice", "each site once"));
                    }
                    sites.push(name);
                }
                out.site_orgs.insert(org, sites);
            }
        }
        if let Some(admins) = fields.given("admins") {
            for item in admins.seq()? {
                let name: UserName = item.name()?;
                if !self.users.iter().any(|user| user.name == name) {
                    return Err(
                        item.refuse("is not a user of the federation", "names of participants of type admin")
                    );
                }
                if !out.admins.contains(&name) {
                    out.admins.push(name);
                }
            }
        }
        Ok(out)
    }

    /// Writes it back, without what was ignored.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let text = Value::from;
        let mut server = vec![
            ("name", text(self.server.name.as_str())),
            ("type", text("server")),
            ("org", text(self.server.org.as_str())),
            ("port", Value::from(u32::from(self.server.port))),
        ];
        if !self.server.host_names.is_empty() {
            server.push(("host_names", Value::seq(self.server.host_names.iter().map(|n| text(n.as_str())))));
        }
        let mut participants = vec![Value::map(server)];
        participants.extend(self.sites.iter().map(|site| {
            Value::map([
                ("name", text(site.name.as_str())),
                ("type", text("client")),
                ("org", text(site.org.as_str())),
            ])
        }));
        participants.extend(self.users.iter().map(|user| {
            Value::map([
                ("name", text(user.name.as_str())),
                ("type", text("admin")),
                ("org", text(user.org.as_str())),
                ("role", text(user.role.as_str())),
            ])
        }));
        let mut out = vec![("api_version", Value::from(4u32)), ("name", text(self.name.as_str()))];
        if let Some(description) = &self.description {
            out.push(("description", text(description.as_str())));
        }
        out.push(("participants", Value::seq(participants)));
        if !self.studies.is_empty() {
            let studies = self.studies.iter().map(|(name, study)| {
                let sites = study.site_orgs.iter().map(|(org, sites)| {
                    (org.as_str(), Value::seq(sites.iter().map(|site| text(site.as_str()))))
                });
                let admins = study.admins.iter().map(|admin| text(admin.as_str()));
                let entry = [("site_orgs", Value::map(sites)), ("admins", Value::seq(admins))];
                (name.as_str(), Value::map(entry))
            });
            out.push(("studies", Value::map(studies)));
        }
        Value::map(out)
    }
}

impl fmt::Display for Project {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_yaml(&self.to_value()))
    }
}

type Participants = (Server, Vec<Site>, Vec<User>);

fn read_participants(at: &At<'_>, warnings: &mut Vec<String>) -> Result<Participants> {
    let (mut server, mut sites, mut users) = (None, Vec::new(), Vec::new());
    for item in at.seq()? {
        let mut known = vec!["name", "type", "org", "role", "port", "fed_learn_port", "host_names"];
        known.extend(IGNORED_OF_PARTICIPANT);
        let fields = item.fields(&known)?;
        for key in IGNORED_OF_PARTICIPANT.iter().filter(|key| fields.has(key)) {
            warnings.push(format!("{}: ignored", item.path_of(key)));
        }
        let org: OrgName = fields.need("org", "an organisation")?.name()?;
        let name = fields.need("name", "a name")?;
        let only = |keys: &[&str], what: &str| match keys.iter().find_map(|key| fields.given(key)) {
            Some(at) => Err(at.refuse(&format!("is only for {what}"), "nothing")),
            None => Ok(()),
        };
        let kind = fields.need("type", "server, client, admin")?;
        match kind.value().as_text() {
            Some("server") => {
                only(&["role"], "users")?;
                if server.is_some() {
                    return Err(item.refuse("is a second server", "one participant of type server"));
                }
                server = Some(read_server(&fields, name.name()?, org)?);
            }
            Some("client") => {
                only(&["role"], "users")?;
                only(&["port", "fed_learn_port", "host_names"], "the server")?;
                let name: SiteName = name.name()?;
                if name.is_server() {
                    return Err(item.refuse("is a site called like the server", "names other than `server`"));
                }
                sites.push(Site { name, org });
            }
            Some("admin") => {
                only(&["port", "fed_learn_port", "host_names"], "the server")?;
                let role = fields.need("role", "project_admin, org_admin, lead, member")?.name()?;
                users.push(User { name: name.name()?, org, role });
            }
            _ => return Err(kind.refuse("is not a type of participant", "server, client, admin")),
        }
    }
    let Some(server) = server else {
        return Err(at.refuse_showing("", "names no server", "one participant of type server"));
    };
    let mut names: Vec<&str> = vec![server.name.as_str()];
    names.extend(sites.iter().map(|site| site.name.as_str()));
    names.extend(users.iter().map(|user| user.name.as_str()));
    // FLARE's policies, and some file systems, do not tell cases apart.
    let mut seen: HashSet<String> = HashSet::new();
    for name in names {
        if !seen.insert(name.to_lowercase()) {
            return Err(at.refuse_showing(
                name,
                "names somebody twice",
                "each name once, without regard to case",
            ));
        }
    }
    Ok((server, sites, users))
}

fn read_server(fields: &Fields<'_>, name: SiteName, org: OrgName) -> Result<Server> {
    let port = match fields.either("port", "fed_learn_port")? {
        Some(port) => u16::try_from(port.count(1, 65535)?).expect("bounded above"),
        None => crate::parent::PORT,
    };
    let mut host_names = Vec::new();
    if let Some(at) = fields.given("host_names") {
        for item in at.seq()? {
            let text = item.clean_text()?;
            let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_' | '*');
            if text.len() > 253 || !text.chars().all(good) {
                return Err(item.refuse("is not a host", "a host name or an address"));
            }
            host_names.push(text.to_owned());
        }
    }
    Ok(Server { name, org, port, host_names })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) const EXAMPLE: &str = "api_version: 4
name: cancer-net
participants:
  - {name: fl.example.org, type: server, org: host}
  - {name: hospital-a, type: client, org: org_a}
  - {name: lead@org_a.com, type: admin, org: org_a, role: lead}
studies:
  pathology: {site_orgs: {org_a: [hospital-a]}, admins: [lead@org_a.com]}
";

    fn read(text: &str) -> std::result::Result<Project, String> {
        Project::parse("project.yml", text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_documented_example() {
        let project = read(EXAMPLE).expect("the example");
        assert_eq!(project.server.port, 8443);
        assert_eq!(project.users[0].role, UserRole::Lead);
        assert_eq!(read(&project.to_string()), Ok(project));
    }

    #[test]
    fn refusals() {
        for (from, to, part) in [
            ("api_version: 4", "api_version: 3", "api_version: is not a version"),
            ("type: server", "type: client", "participants: names no server"),
            ("pathology:", "default:", "studies.default: is under a reserved name"),
            ("[hospital-a]", "[hospital-b]", "studies.pathology.site_orgs.org_a[0]: is not a site"),
            ("{org_a: [", "{host: [", "is a site of another organisation"),
            ("{org_a: [", "{org_x: [", "is under an organisation that does not take part"),
            ("[lead@org_a.com]", "[eve@org_a.com]", "studies.pathology.admins[0]: is not a user"),
            ("role: lead", "role: boss", "participants[2].role: is not a user role"),
            ("name: hospital-a", "name: FL.example.org", "names somebody twice"),
            ("name: hospital-a", "name: server", "is a site called like the server"),
            (", role: lead", "", "participants[2].role: is missing"),
            ("studies:", "study:", "is `studies` meant?"),
            ("[hospital-a]", "[hospital-a, hospital-a]", "stands twice"),
        ] {
            let text = EXAMPLE.replace(from, to);
            let error = read(&text).expect_err(to);
            assert!(error.contains(part), "{to}: {error}");
        }
    }

    proptest! {
        #[test]
        fn prints_and_reads_back(
            sites in prop::collection::btree_set("[a-z][a-z0-9-]{0,8}[a-z0-9]", 0..5),
            users in prop::collection::btree_map("[a-z]{2,6}@[a-z]{2,6}", prop::sample::select(UserRole::ALL.to_vec()), 0..4),
            port in 1u16..,
        ) {
            let org = OrgName::new("org").expect("org");
            let sites: Vec<Site> = sites.iter().filter(|s| *s != "server").map(|s| Site { name: SiteName::new(s).expect("site"), org: org.clone() }).collect();
            let users: Vec<User> = users.into_iter().map(|(n, role)| User { name: UserName::new(&n).expect("user"), org: org.clone(), role }).collect();
            let study = Study {
                site_orgs: [(org.clone(), sites.iter().map(|s| s.name.clone()).collect())].into(),
                admins: users.iter().map(|u| u.name.clone()).collect(),
            };
            let project = Project {
                name: "a net".into(),
                description: Some("x: y".into()),
                server: Server { name: SiteName::new("fl.example.org").expect("server"), org, port, host_names: vec!["::1".into()] },
                sites,
                users,
                studies: [(StudyName::new("s").expect("study"), study)].into(),
                warnings: Vec::new(),
            };
            prop_assert_eq!(read(&project.to_string()), Ok(project));
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "(?s).{0,64}") {
            let _ = Project::parse("project.yml", &bytes);
            let _ = read(&text);
        }
    }
}
