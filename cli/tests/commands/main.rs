//! Each command against a server that says fixed things: what people read, what programs read, exit codes,
//! and how a command behaves when the server is away or has forgotten the session.

mod server;

use serde_json::{Value, json};
use server::{LEAD, Server, session};

const ID: &str = "3f2a0c11d2e3f405162738495a6b7c8d";

fn job(phase: &str) -> Value {
    json!({"id": ID, "name": "breast-cancer", "study": "pathology", "submitter": LEAD, "phase": phase,
        "round": 2, "total_rounds": 2, "metrics": {"accuracy": 0.9532},
        "workers": [
            {"site": "server", "role": "server", "attempt": 1, "phase": "exited"},
            {"site": "uni", "role": "client", "attempt": 1, "phase": "exited"}],
        "submitted": 1_700_000_000_000_u64, "started": 1_700_000_001_000_u64, "finished": 1_700_000_004_500_u64,
        "priority": "normal"})
}

fn problem(code: &str, message: &str) -> Value {
    json!({"code": code, "message": message})
}

fn events(n: u64, end: bool) -> Value {
    json!({"next": n, "end": end, "events": [
        {"n": n - 1, "at": 5, "event": "phase", "phase": "running"},
        {"n": n, "at": 9, "event": "round", "round": n / 2, "total_rounds": 2, "millis": 12,
         "metrics": {"accuracy": 0.9}, "sites": {"uni": {"accuracy": 0.9}}}]})
}

fn get(path: &str) -> String {
    format!("GET /v1/user/{path}")
}

#[test]
fn login_remembers_and_logout_forgets() {
    let server = Server::start();
    server.answer("DELETE /v1/user/sessions", 204, Value::Null);
    server.answer(&get("sites"), 200, json!({"sites": []}));
    let kit = server.kit(LEAD);
    let kit = kit.to_str().expect("text");
    let shown = server.shown(&["login", "--study", "pathology", "--kit", kit]);
    // Neither kit nor study is named any more.
    let run = |words: &[&str]| {
        let output = server.command(words).env_remove("POLDER_KIT").env_remove("POLDER_STUDY").output();
        let output = output.expect("it starts");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let rest: Vec<String> = [["sites"], ["logout"], ["sites"]].iter().map(|words| run(words)).collect();
    insta::assert_snapshot!(format!("{shown}{}", rest.join("")));
    let stored = std::fs::read_dir(server.dir().join(".local/state/polder/sessions")).expect("there").count();
    assert_eq!(stored, 0);
}

#[test]
fn a_session_is_opened_by_itself_used_again_and_opened_anew_when_forgotten() {
    let server = Server::start();
    server.answer("POST /v1/user/sessions", 200, session("second"));
    server.answer(&get("jobs"), 200, json!({"jobs": []}));
    assert_eq!(server.polder(&["jobs"]).code, 0);
    assert_eq!(server.polder(&["jobs"]).code, 0);
    assert_eq!(server.asked(), ["POST /v1/user/sessions", "GET /v1/user/jobs", "GET /v1/user/jobs"]);
    let server = Server::start();
    server.answer("POST /v1/user/sessions", 200, session("second"));
    server.answer(&get("jobs"), 401, problem("unauthenticated", "no such session"));
    server.answer(&get("jobs"), 200, json!({"jobs": []}));
    assert_eq!(server.polder(&["jobs"]).code, 0);
    let jobs = "GET /v1/user/jobs";
    assert_eq!(server.asked(), ["POST /v1/user/sessions", jobs, "POST /v1/user/sessions", jobs]);
}

#[test]
fn jobs_that_are_shown_ended_and_removed() {
    let server = Server::start();
    server.answer(&get("jobs/3f2a"), 200, job("completed"));
    server.answer(&get(&format!("jobs/{ID}")), 200, job("aborted"));
    server.answer(&format!("POST /v1/user/jobs/{ID}/abort"), 204, Value::Null);
    server.answer(&format!("DELETE /v1/user/jobs/{ID}"), 204, Value::Null);
    let shown: Vec<String> =
        [["abort", "3f2a"], ["delete", "3f2a"]].iter().map(|words| server.shown(words)).collect();
    insta::assert_snapshot!(shown.join("\n"));
    let shown = server.polder(&["show", "3f2a"]).out;
    assert!(shown.starts_with(&format!("job        {ID}\nname       breast-cancer\n")), "{shown}");
    assert!(shown.contains("completed"), "{shown}");
}

#[test]
fn watching_says_every_event_and_how_it_ended() {
    let server = Server::start();
    server.answer(&get("jobs/3f2a"), 200, job("running"));
    server.answer(&get(&format!("jobs/{ID}/events?after=0&wait=50")), 200, events(2, false));
    server.answer(&get(&format!("jobs/{ID}/events?after=2&wait=50")), 200, events(4, true));
    server.answer(&get(&format!("jobs/{ID}")), 200, job("completed"));
    insta::assert_snapshot!(server.shown(&["watch", "3f2a"]));
}

#[test]
fn a_job_that_fails_is_exit_code_1_and_says_where_and_why() {
    let server = Server::start();
    let mut failed = job("failed");
    failed["failure"] =
        json!({"site": "uni", "class": "user_code", "cause": "exit 7", "tail": "KeyError: 'age'\n"});
    server.answer(&get("jobs/3f2a"), 200, job("running"));
    server.answer(&get(&format!("jobs/{ID}/events?after=0&wait=50")), 200, events(2, true));
    server.answer(&get(&format!("jobs/{ID}")), 200, failed);
    insta::assert_snapshot!(server.shown(&["watch", "3f2a"]));
}

#[test]
fn waiting_survives_a_server_that_goes_away_and_comes_back() {
    let mut server = Server::start();
    server.answer(&get("jobs/3f2a"), 200, job("running"));
    server.answer(&get(&format!("jobs/{ID}/events?after=0&wait=50")), 200, events(2, false));
    let next = get(&format!("jobs/{ID}/events?after=2&wait=50"));
    server.answer(&next, 503, problem("busy", "it stops"));
    server.answer(&next, 200, events(4, true));
    server.answer(&get(&format!("jobs/{ID}")), 200, job("completed"));
    let mut child = server.command(&["watch", "3f2a", "--json"]).stdout(std::process::Stdio::piped()).spawn();
    let child = child.as_mut().expect("it starts");
    // It is down as soon as it was asked for what comes next.
    let mut asked = Vec::new();
    while !asked.contains(&next) {
        asked.extend(server.asked());
        std::thread::yield_now();
    }
    server.down();
    std::thread::sleep(std::time::Duration::from_millis(300));
    server.up();
    let status = child.wait().expect("it ends");
    let mut out = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().expect("piped"), &mut out).expect("text");
    assert!(status.success(), "{out}");
    let rounds = out.lines().filter(|line| line.contains("\"event\":\"round\"")).count();
    assert_eq!((out.lines().count(), rounds), (5, 2), "{out}");
}

#[test]
fn logs_carry_their_site_and_never_break_the_terminal() {
    let server = Server::start();
    let log = |path: &str, text: &str, next: u64| {
        server.answer(
            &get(&format!("jobs/{ID}/logs?{path}")),
            200,
            json!({"text": text, "next": next, "end": false}),
        );
    };
    server.answer(&get("jobs/3f2a"), 200, job("running"));
    log("site=server&role=server&after=0&wait=0", "round 1\n", 8);
    log("site=server&role=server&after=8&wait=0", "", 8);
    log("site=uni&role=client&after=0&wait=0", "begins\nand is\u{1b}[31m cut ", 24);
    log("site=uni&role=client&after=24&wait=0", "here", 28);
    log("site=uni&role=client&after=28&wait=0", "", 28);
    insta::assert_snapshot!(server.shown(&["logs", "3f2a", "--site", "uni"]));
    let mut lines: Vec<String> = server.polder(&["logs", "3f2a"]).out.lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["server | round 1", "uni    | and is\u{fffd}[31m cut here", "uni    | begins"]);
}

#[test]
fn refusals_have_one_line_and_their_exit_code() {
    let server = Server::start();
    let cases = [
        ("aaaa", 400, "invalid"),
        ("bbbb", 404, "not_found"),
        ("cccc", 403, "forbidden"),
        ("dddd", 503, "busy"),
        ("eeee", 500, "internal"),
        ("ffff", 409, "conflict"),
    ];
    let mut shown = String::new();
    for (id, status, code) in cases {
        server.answer(&get(&format!("jobs/{id}")), status, problem(code, "says what is wrong"));
        shown.push_str(&server.shown(&["show", id]));
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn a_server_that_is_not_there_is_exit_code_4() {
    let mut server = Server::start();
    server.down();
    insta::assert_snapshot!(server.shown(&["jobs"]));
}

#[test]
fn the_registry() {
    let server = Server::start();
    let study =
        json!({"name": "cardiology", "site_orgs": {"org_a": ["hospital-a"]}, "users": [LEAD], "version": 4});
    server.answer("POST /v1/user/studies", 200, study.clone());
    server.answer(&get("studies"), 200, json!({"studies": [study]}));
    let commands: [&[&str]; 6] = [
        &["study", "list"],
        &["study", "show", "cardiology"],
        &["study", "show", "none"],
        &["study", "register", "cardiology", "--site", "org_a/hospital-a", "--user", LEAD],
        &["study", "add-user", "cardiology", "member@org_a.com"],
        &["study", "remove", "cardiology"],
    ];
    let shown: Vec<String> = commands.iter().map(|words| server.shown(words)).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn nothing_is_asked_for_a_job_that_is_wrong() {
    let server = Server::start();
    std::fs::create_dir_all(server.dir().join("job/app")).expect("made");
    std::fs::write(server.dir().join("job/meta.json"), r#"{"deploy_map": {"app": ["uni"]}}"#)
        .expect("written");
    std::fs::write(server.dir().join("job/app/job.yaml"), "trainer: {command: [x]}\n").expect("written");
    insta::assert_snapshot!(server.shown(&["submit", "job"]));
    assert!(server.asked().is_empty());
}

#[test]
fn a_plan_is_the_request_of_the_launcher_or_one_refusal() {
    let server = Server::start();
    let write = |name: &str, text: &str| std::fs::write(server.dir().join(name), text).expect("written");
    write("process.yaml", "name: uni\nserver: https://s\nlauncher: {process: {gpus: [7, 8]}}\n");
    write("docker.yaml", "name: uni\nserver: https://s\nlauncher: {docker: {}}\n");
    write("runtime.yaml", "format_version: 2\nstudies: {a: {limits: {gpus: 2}}}\n");
    write("meta.json", r#"{"resource_spec": {"@default": {"num_of_gpus": 2, "memory": "1Gi"}}}"#);
    write("greedy.json", r#"{"resource_spec": {"@default": {"num_of_gpus": 3}}}"#);
    let words = |config: &'static str, meta: &'static str| {
        ["plan", "--config", config, "--meta", meta, "--study-runtime", "runtime.yaml", "--site", "uni"]
    };
    let said = server.polder(&[&words("process.yaml", "meta.json")[..], &["--json"]].concat());
    let plan: Value = serde_json::from_str(&said.out).expect("one document");
    assert_eq!((&plan["mode"], &plan["gpus"]), (&json!("process"), &json!(["7", "8"])));
    assert_eq!(plan["limits"]["memory"], 1 << 30);
    let refusals = [
        words("docker.yaml", "meta.json"),
        words("process.yaml", "greedy.json"),
        words("none.yaml", "meta.json"),
    ];
    let shown: Vec<String> = refusals.iter().map(|words| server.shown(words)).collect();
    insta::assert_snapshot!(shown.join("\n"));
}
