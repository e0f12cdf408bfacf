//! `authorization.json`: who may do what, in FLARE's grammar, and the decision.
//!
//! A policy maps a role to one rule for everything, or to a rule for each right. A rule is a condition or a list of
//! them: `any`, `none`, `o:site`, `o:submitter`, `o:<org>`, `n:submitter`, `n:<name>`, each may follow `not`. When a
//! `not` condition matches, the answer is no; else one of the others has to match, where there are any. Names are
//! compared as FLARE does, without regard to case.

use crate::error::Result;
use crate::value::{At, Data, Value, from_json, to_json_pretty};
use indexmap::IndexMap;
use polder_words::{OrgName, UserName, UserRole};
use std::fmt;

/// Where the file is in a site's folder.
pub const FILE: &str = "local/authorization.json";

/// What may be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Submit jobs.
    SubmitJob,
    /// Submit somebody's job again.
    CloneJob,
    /// Abort and delete jobs.
    ManageJob,
    /// Download results.
    DownloadJob,
    /// See jobs, logs and sites.
    View,
    /// Run sites.
    Operate,
    /// A shell; a right nothing asks for.
    ShellCommands,
    /// Bring code: an app with code, an image, an entry point.
    Byoc,
}

/// Every right and its word.
pub const RIGHTS: [(&str, Right); 8] = [
    ("submit_job", Right::SubmitJob),
    ("clone_job", Right::CloneJob),
    ("manage_job", Right::ManageJob),
    ("download_job", Right::DownloadJob),
    ("view", Right::View),
    ("operate", Right::Operate),
    ("shell_commands", Right::ShellCommands),
    ("byoc", Right::Byoc),
];

/// FLARE's commands, which a file may name to except them from their right.
const COMMANDS: [(&str, Right); 33] = [
    ("abort", Right::ManageJob),
    ("abort_job", Right::ManageJob),
    ("delete_job", Right::ManageJob),
    ("delete_workspace", Right::ManageJob),
    ("configure_job_log", Right::ManageJob),
    ("check_status", Right::View),
    ("show_scopes", Right::View),
    ("show_stats", Right::View),
    ("reset_errors", Right::View),
    ("show_errors", Right::View),
    ("list_jobs", Right::View),
    ("list_job", Right::View),
    ("get_job_meta", Right::View),
    ("get_job_log", Right::View),
    ("sys_info", Right::Operate),
    ("report_resources", Right::Operate),
    ("report_env", Right::Operate),
    ("report_version", Right::Operate),
    ("restart", Right::Operate),
    ("shutdown", Right::Operate),
    ("remove_client", Right::Operate),
    ("disable_client", Right::Operate),
    ("enable_client", Right::Operate),
    ("set_timeout", Right::Operate),
    ("call", Right::Operate),
    ("configure_site_log", Right::Operate),
    ("cat", Right::ShellCommands),
    ("grep", Right::ShellCommands),
    ("head", Right::ShellCommands),
    ("ls", Right::ShellCommands),
    ("pwd", Right::ShellCommands),
    ("tail", Right::ShellCommands),
    ("download_job_components", Right::DownloadJob),
];

/// Rights of FLARE that nothing here asks for.
const UNUSED: [&str; 1] = ["server-predeployed-flwr"];

impl Right {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        RIGHTS.iter().find(|(_, right)| *right == self).map_or("", |(word, _)| word)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    not: bool,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Any,
    None,
    OrgOfSite,
    OrgOfSubmitter,
    Org(String),
    Submitter,
    Name(String),
}

/// A condition or a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule(Vec<Condition>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Grant {
    /// One rule for whatever is asked.
    All(Rule),
    /// By right or command.
    Each(IndexMap<String, Rule>),
}

/// A parsed `authorization.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    roles: IndexMap<String, Grant>,
    /// What people should know although it is allowed.
    pub warnings: Vec<String>,
}

/// A person, as a certificate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Person<'a> {
    /// Name.
    pub name: &'a UserName,
    /// Organisation.
    pub org: &'a OrgName,
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// What somebody wants to do.
    pub right: Right,
    /// FLARE's name of the command, where one is meant that a policy may except.
    pub command: Option<&'a str>,
    /// Who.
    pub user: Person<'a>,
    /// With which role.
    pub role: UserRole,
    /// The organisation of the place where it is decided.
    pub site_org: &'a OrgName,
    /// Whose job it is about, where it is about one.
    pub submitter: Option<Person<'a>>,
}

/// The answer and the rule that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is allowed.
    pub allowed: bool,
    /// The rule, as `lead.manage_job: n:submitter`.
    pub rule: String,
}

impl Decision {
    /// One sentence for people: `lead@org_a.com may not manage_job: the rule is lead.manage_job: n:submitter`.
    #[must_use]
    pub fn sentence(&self, question: &Question<'_>) -> String {
        let may = if self.allowed { "may" } else { "may not" };
        format!("{} {may} {}: the rule is {}", question.user.name, question.right, self.rule)
    }
}

impl Policy {
    /// Reads `authorization.json`.
    ///
    /// # Errors
    /// When it is not JSON or not a policy of format version 1.0, or names an unknown right.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        let value = from_json(file, bytes)?;
        let at = At::root(file, &value);
        let fields = at.fields(&["format_version", "permissions"])?;
        let version = fields.need("format_version", "\"1.0\"")?;
        if version.value().as_text() != Some("1.0") {
            return Err(version.refuse("is not a version this program reads", "\"1.0\""));
        }
        let permissions = fields.need("permissions", "a map of roles")?;
        let mut out = Self { roles: IndexMap::new(), warnings: Vec::new() };
        let entries = permissions.entries()?;
        if entries.is_empty() {
            return Err(permissions.refuse("is empty", "a map of roles"));
        }
        for (role, grant) in entries {
            let name = normal(role);
            if UserRole::ALL.iter().all(|known| known.as_str() != name) {
                out.warnings.push(format!("permissions: nobody has the role {name:?}"));
            }
            let grant_read = read_grant(&grant)?;
            if out.roles.insert(name, grant_read).is_some() {
                return Err(grant.refuse("is a role that stands twice", "each role once"));
            }
        }
        Ok(out)
    }

    /// Answers a question.
    #[must_use]
    pub fn decide(&self, question: &Question<'_>) -> Decision {
        let role = question.role.as_str();
        let right = question.right.as_str();
        let no_rule = || Decision { allowed: false, rule: format!("{role}.{right}: none (nothing is said)") };
        let (key, rule) = match self.roles.get(role) {
            None => return no_rule(),
            Some(Grant::All(rule)) => (role.to_owned(), rule),
            Some(Grant::Each(rules)) => {
                let command = question.command.and_then(|command| rules.get_key_value(command));
                match command.or_else(|| rules.get_key_value(right)) {
                    None => return no_rule(),
                    Some((key, rule)) => (format!("{role}.{key}"), rule),
                }
            }
        };
        Decision { allowed: rule.allows(question), rule: format!("{key}: {rule}") }
    }

    /// Writes it back.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let roles = self.roles.iter().map(|(role, grant)| {
            let grant = match grant {
                Grant::All(rule) => rule.to_value(),
                Grant::Each(rules) => Value::map(rules.iter().map(|(right, rule)| (right, rule.to_value()))),
            };
            (role, grant)
        });
        Value::map([("format_version", Value::from("1.0")), ("permissions", Value::map(roles))])
    }
}

impl Default for Policy {
    /// What applies where a site has no file of its own. Nobody has a shell.
    fn default() -> Self {
        let rules = |pairs: &[(&str, &str)]| {
            let rule = |text: &str| Rule(vec![condition(text).expect("a condition written here")]);
            Grant::Each(pairs.iter().map(|(right, text)| ((*right).to_owned(), rule(text))).collect())
        };
        let all: Vec<(&str, &str)> = RIGHTS
            .iter()
            .map(|(word, right)| (*word, if *right == Right::ShellCommands { "none" } else { "any" }))
            .collect();
        let roles = [
            ("project_admin", rules(&all)),
            (
                "org_admin",
                rules(&[
                    ("submit_job", "none"),
                    ("clone_job", "none"),
                    ("manage_job", "o:submitter"),
                    ("download_job", "o:submitter"),
                    ("view", "any"),
                    ("operate", "o:site"),
                    ("shell_commands", "none"),
                    ("byoc", "none"),
                ]),
            ),
            (
                "lead",
                rules(&[
                    ("submit_job", "any"),
                    ("clone_job", "n:submitter"),
                    ("manage_job", "n:submitter"),
                    ("download_job", "n:submitter"),
                    ("view", "any"),
                    ("operate", "o:site"),
                    ("shell_commands", "none"),
                    ("byoc", "any"),
                ]),
            ),
            ("member", rules(&[("view", "any")])),
        ];
        Self {
            roles: roles.into_iter().map(|(role, grant)| (role.to_owned(), grant)).collect(),
            warnings: Vec::new(),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", to_json_pretty(&self.to_value()))
    }
}

fn read_grant(at: &At<'_>) -> Result<Grant> {
    if at.value().as_map().is_none() {
        return Ok(Grant::All(Rule::read(at)?));
    }
    let mut rules = IndexMap::new();
    for (right, rule) in at.entries()? {
        let name = normal(right);
        let words: Vec<&str> = RIGHTS.iter().map(|(word, _)| *word).collect();
        let known = words.contains(&name.as_str())
            || UNUSED.contains(&name.as_str())
            || COMMANDS.iter().any(|(command, _)| *command == name);
        if !known {
            return Err(crate::value::unknown_key(&rule, right, &words));
        }
        if rules.insert(name, Rule::read(&rule)?).is_some() {
            return Err(rule.refuse("is a right that stands twice", "each right once"));
        }
    }
    Ok(Grant::Each(rules))
}

const CONDITIONS: &str =
    "any, none, o:site, o:submitter, o:<org>, n:submitter, n:<name>, each after `not` or alone";

impl Rule {
    fn read(at: &At<'_>) -> Result<Self> {
        let one = |at: &At<'_>| {
            let text = at.value().as_text();
            text.and_then(condition).ok_or_else(|| at.refuse("is not a condition", CONDITIONS))
        };
        match &at.value().data {
            Data::Seq(items) if items.is_empty() => Err(at.refuse("is empty", CONDITIONS)),
            Data::Seq(_) => Ok(Self(at.seq()?.iter().map(one).collect::<Result<_>>()?)),
            _ => Ok(Self(vec![one(at)?])),
        }
    }

    fn allows(&self, question: &Question<'_>) -> bool {
        let matches = |condition: &&Condition| condition.test.matches(question);
        if self.0.iter().filter(|c| c.not).any(|c| matches(&c)) {
            return false;
        }
        let mut positive = self.0.iter().filter(|c| !c.not).peekable();
        positive.peek().is_none() || positive.any(|c| matches(&c))
    }

    fn to_value(&self) -> Value {
        match self.0.as_slice() {
            [one] => Value::from(one.to_string()),
            many => Value::seq(many.iter().map(|condition| Value::from(condition.to_string()))),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(" or "))
    }
}

impl Test {
    fn matches(&self, question: &Question<'_>) -> bool {
        let user = &question.user;
        match self {
            Self::Any => true,
            Self::None => false,
            Self::OrgOfSite => same(user.org.as_str(), question.site_org.as_str()),
            Self::OrgOfSubmitter => {
                question.submitter.is_some_and(|s| same(user.org.as_str(), s.org.as_str()))
            }
            Self::Org(org) => same(user.org.as_str(), org),
            Self::Submitter => question.submitter.is_some_and(|s| same(user.name.as_str(), s.name.as_str())),
            Self::Name(name) => same(user.name.as_str(), name),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.not {
            f.write_str("not ")?;
        }
        match &self.test {
            Test::Any => f.write_str("any"),
            Test::None => f.write_str("none"),
            Test::OrgOfSite => f.write_str("o:site"),
            Test::OrgOfSubmitter => f.write_str("o:submitter"),
            Test::Org(org) => write!(f, "o:{org}"),
            Test::Submitter => f.write_str("n:submitter"),
            Test::Name(name) => write!(f, "n:{name}"),
        }
    }
}

fn same(a: &str, b: &str) -> bool {
    normal(a) == normal(b)
}

/// Lower case, white space made one blank.
fn normal(text: &str) -> String {
    text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn condition(text: &str) -> Option<Condition> {
    let text = normal(text);
    let (not, text) = match text.split(' ').collect::<Vec<_>>().as_slice() {
        ["not", rest] => (true, (*rest).to_owned()),
        _ => (false, text),
    };
    let test = match text.as_str() {
        "all" | "any" => Test::Any,
        "none" | "no" => Test::None,
        _ => {
            let (kind, target) = text.split_once(':')?;
            let (kind, target) = (kind.trim(), target.trim());
            if target.is_empty() || target.contains(':') {
                return None;
            }
            match (kind, target) {
                ("o" | "org", "site") => Test::OrgOfSite,
                ("o" | "org", "submitter") => Test::OrgOfSubmitter,
                ("o" | "org", org) => Test::Org(org.to_owned()),
                ("n" | "name", "submitter") => Test::Submitter,
                ("n" | "name", name) => Test::Name(name.to_owned()),
                _ => return None,
            }
        }
    };
    Some(Condition { not, test })
}

#[cfg(test)]
mod tests;
