use super::*;
use proptest::prelude::*;

fn read(text: &str) -> std::result::Result<ParentConfig, String> {
    ParentConfig::parse("parent.yaml", text.as_bytes()).map_err(|error| error.to_string())
}

const SITE: &str = "name: hospital-a\nserver: https://fl.example.org:8443\n";

#[test]
fn a_site_with_defaults() {
    let config = read(&format!("{SITE}launcher: {{process: {{}}}}\n")).expect("the least");
    assert_eq!(config.role, Role::Client);
    assert_eq!(config.max_restarts, 2);
    assert_eq!(config.state, Path::new("state"));
    let LauncherConfig::Process(process) = &config.launcher else { panic!("process") };
    assert_eq!(process.isolation_required, IsolationRequired::Byoc);
    assert_eq!(read(&config.to_string()), Ok(config));
}

#[test]
fn a_server() {
    let config = read("name: fl.example.org\nrole: server\nlisten: 127.0.0.1:0\nlauncher:\n  process:\n")
        .expect("server");
    assert_eq!((config.role, config.listen.map(|l| l.port())), (Role::Server, Some(0)));
}

#[test]
fn every_launcher_prints_back() {
    for launcher in [
        "process: {gpus: [0, GPU-1], cpus: 4, memory: 8Gi, user: fl, isolation_required: true}",
        "process: {worker: /opt/polder/polder-worker, read: [/data, /opt/conda], write: [/scratch], cgroup: /sys/fs/cgroup/polder}",
        "process: {gpus: 3, forward_env: [LANG], isolation_required: false, pending_timeout: 90s}",
        "process: {internal_port: 8102, internal_listen: 127.0.0.1, files: channel}",
        "docker: {network: fl, parent_host: 172.18.0.1, internal_port: 9000, internal_listen: \"::\"}",
        "kubernetes: {parent_host: polder.fl.svc, internal_port: 8200, internal_listen: 0.0.0.0}",
        "docker: {network: none, pending_timeout: 10m, pull: never}",
        "docker: {default_job_container_kwargs: {ipc_mode: host, labels: {a: b}}, default_job_env: {A: site, N: 1}, \
         default_python_path: /opt/py, network: net2, gpus: auto, pending_timeout: null}",
        "kubernetes: {default_python_path: /p, ephemeral_storage: 2Gi, image_pull_secrets: [reg], namespace: fl, \
         pending_timeout: null, security_context: {runAsUser: 1000}, workspace_mount_path: /ws}",
        "slurm: {sandbox: spank, partition: gpu, account: proj, time: \"12:00:00\", parent_host: login1, \
         setup: \"module load x\", pending_timeout: 10m}",
        "slurm: {image: null, parent_host: login1.example, python_path: /usr/bin/python3, sandbox: none, \
         sbatch_directives: {account: 7, constraint: a100, partition: p, qos: q, reservation: r1, time: \"10\"}, \
         forward_env: [HTTPS_PROXY], multi_node_port_range: [29400, 29500]}",
    ] {
        let config =
            read(&format!("{SITE}launcher: {{{launcher}}}\n")).unwrap_or_else(|e| panic!("{launcher}: {e}"));
        assert_eq!(read(&config.to_string()).as_ref(), Ok(&config), "{config}");
    }
}

#[test]
fn who_dials_a_port_and_who_shares_files() {
    let of = |launcher: &str| {
        let config =
            read(&format!("{SITE}launcher: {{{launcher}}}\n")).unwrap_or_else(|e| panic!("{launcher}: {e}"));
        let port = config.launcher.worker_port().map(|port| (port.host.clone(), port.port));
        (port, config.launcher.file_way())
    };
    use polder_words::FileWay::{Channel, Shared};
    assert_eq!(of("process: {}"), (None, Shared));
    assert_eq!(of("process: {files: channel}"), (None, Channel));
    assert_eq!(of("process: {internal_port: 9}"), (Some((None, 9)), Shared));
    assert_eq!(of("docker: {network: fl}"), (None, Shared));
    assert_eq!(of("slurm: {}"), (Some((None, 8102)), Shared));
    let host = Some("polder.fl.svc".to_owned());
    assert_eq!(of("kubernetes: {parent_host: polder.fl.svc}"), (Some((host, 8102)), Channel));
}

#[test]
fn refusals() {
    for (text, part) in [
        ("launcher: {process: {}}", "name: is missing"),
        ("name: a\nlauncher: {process: {}}", "server: is missing"),
        ("name: a\nserver: http://x\nlauncher: {process: {}}", "server: is not an address"),
        ("name: a\nserver: https://x\nlauncher: {}", "launcher: holds 0 launchers"),
        ("name: a\nserver: https://x\nlauncher: {process: {}, docker: {}}", "launcher: holds 2 launchers"),
        ("name: a\nserver: https://x\nlauncher: {proces: {}}", "is `process` meant?"),
        (
            "name: a\nserver: https://x\nlisten: 0.0.0.0:1\nlauncher: {process: {}}",
            "is only for role: server",
        ),
        ("name: a\nrole: server\nserver: https://x\nlauncher: {process: {}}", "is only for sites"),
        (
            "name: a\nserver: https://x\nlauncher: {docker: {job_env: {}, default_job_env: {}}}",
            "says the same as `job_env`",
        ),
        (
            "name: a\nserver: https://x\nlauncher: {docker: {job_container_kwargs: {volumes: []}}}",
            "is set by the launcher",
        ),
        (
            "name: a\nserver: https://x\nlauncher: {docker: {parent_host: h}}",
            "is of no use with network: none",
        ),
        (
            "name: a\nserver: https://x\nlauncher: {docker: {network: n, internal_port: 1}}",
            "parent_host: is missing",
        ),
        ("name: a\nserver: https://x\nlauncher: {process: {internal_listen: 0.0.0.0}}", "not on which port"),
        (
            "name: a\nserver: https://x\nlauncher: {slurm: {internal_listen: login1}}",
            "is not an address of this host",
        ),
        ("name: a\nserver: https://x\nlauncher: {process: {files: both}}", "files: is not"),
        ("name: a\nserver: https://x\nlauncher: {slurm: {partition: a b}}", "holds white space"),
        ("name: a\nserver: https://x\nlauncher: {slurm: {forward_env: [SLURM_X]}}", "is reserved"),
        ("name: a\nserver: https://x\nlauncher: {process: {worker: bin/w}}", "is not an absolute path"),
        ("name: a\nserver: https://x\nlauncher: {process: {memory: 8G}}", "is not an amount of memory"),
        ("name: a\nserver: https://x\nmax_restart: 1\nlauncher: {process: {}}", "is `max_restarts` meant?"),
        (
            "name: a\nserver: https://x\nidle: {lost_after: 5s}\nlauncher: {process: {}}",
            "is not longer than `heartbeat`",
        ),
    ] {
        let error = read(text).expect_err(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn a_password_of_a_proxy_is_not_shown() {
    let text = format!("{SITE}proxy: http://u:p%40ss@proxy:8080\nlauncher: {{process: {{}}}}\n");
    let config = read(&text).expect("a proxy");
    let proxy = config.proxy.as_ref().expect("it is there");
    assert_eq!(proxy.credentials, Some(("u".to_owned(), "p@ss".to_owned())));
    assert!(!format!("{config:?}").contains("p@ss") && !proxy.to_string().contains("p%40ss"));
    assert_eq!(read(&config.to_string()).as_ref(), Ok(&config));
    let bad =
        read(&format!("{SITE}proxy: https://u:sekret@p\nlauncher: {{process: {{}}}}\n")).expect_err("scheme");
    assert!(!bad.contains("sekret"), "{bad}");
}

proptest! {
    #[test]
    fn addresses_print_back(host in "[a-z0-9.-]{1,20}", port in 1u16.., user in "[ -~]{0,8}", password in "[ -~é]{0,8}") {
        let url = ServerUrl { host: host.clone(), port };
        prop_assert_eq!(ServerUrl::parse(&url.to_string()), Some(url));
        let proxy = ProxyUrl { host, port, credentials: Some((user, password)) };
        prop_assert_eq!(ProxyUrl::parse(&proxy.to_text()), Some(proxy));
    }

    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "(?s).{0,64}", url in "https?://.{0,20}") {
        let _ = ParentConfig::parse("parent.yaml", &bytes);
        let _ = (read(&text), ServerUrl::parse(&url), ProxyUrl::parse(&url));
    }
}
