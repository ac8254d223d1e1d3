//! What `deploy/` gives to gateways and nodes is what the program takes: its configs, and the ports and folders of its
//! manifests; and its alerts ask for series that the program has.

use omni_actors::config::{Config, Placement, VoicesDirectory, parse};
use omni_actors::core::ids::StageName;
use omni_actors::telemetry::catalogue::{self, Kind};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// A config of the folder, with the clients' key in a file that is here.
fn config(name: &str) -> Config {
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("clients");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    let text = read(name).replace("/keys/clients", &key.display().to_string());
    parse(&text, &folder(), &[]).unwrap_or_else(|error| panic!("deploy/{name}: {error}"))
}

/// The numbers behind a word in a manifest.
fn numbers(manifest: &str, word: &str) -> BTreeSet<u16> {
    let number = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    read(manifest).split(word).skip(1).filter_map(number).collect()
}

#[test]
fn gateways_and_nodes_of_the_manifests_meet() {
    let (gateway, node) = (config("gateway.toml"), config("node.toml"));
    let listen = gateway.cluster.listen.unwrap();
    for stage in [StageName::Talker, StageName::Vocoder] {
        assert_eq!(gateway.stage(stage).placement, Placement::Nodes);
        assert!(node.cluster.stages.contains(&stage));
    }
    assert!(node.cluster.join.iter().all(|address| address.ends_with(&format!(":{}", listen.port()))));
    // Every gateway of the manifest has a name there, which the service gives it.
    let gateways: Vec<String> = (0..2).map(|at| format!("gateway-{at}.gateways:{}", listen.port())).collect();
    assert_eq!(node.cluster.join, gateways);
    assert!(
        read("kubernetes.yaml").contains("metadata: {name: gateway}\nspec:\n  serviceName: gateways\n  replicas: 2\n")
    );
    assert_eq!(gateway.limits.max_requests, node.limits.max_requests / node.cluster.gateways);
    // The nodes of both manifests, shared out.
    assert!(read("kubernetes.yaml").contains("metadata: {name: node}\nspec:\n  replicas: 4\n"));
    assert_eq!(gateway.cluster.max_nodes * gateways.len(), 4);
    assert_eq!(read("compose.yaml").matches("<<: *node").count(), 4);
}

#[test]
fn ports_of_the_manifests_are_those_of_the_configs() {
    let gateway = config("gateway.toml");
    let (http, admin) = (gateway.server.listen.port(), gateway.server.access.admin_listen.unwrap().port());
    let cluster = gateway.cluster.listen.unwrap().port();
    assert_eq!(numbers("kubernetes.yaml", "containerPort: "), [cluster, http, admin].into());
    assert_eq!(numbers("kubernetes.yaml", "targetPort: "), [http].into());
    assert_eq!(numbers("kubernetes.yaml", "ports: [{name: cluster, port: "), [cluster].into());
    assert_eq!(numbers("kubernetes.yaml", "path: /ready, port: "), [admin].into());
    assert_eq!(numbers("kubernetes.yaml", "path: /live, port: "), [admin].into());
    assert_eq!(numbers("kubernetes.yaml", "prometheus.io/port: \""), [admin].into());
    assert_eq!(numbers("compose.yaml", "127.0.0.1:8080:"), [http].into());
    assert_eq!(numbers("compose.yaml", "127.0.0.1:8081:"), [http].into());
}

#[test]
fn voices_of_a_gateway_lie_where_the_manifests_mount_a_volume() {
    // The rest of the container cannot be written.
    let VoicesDirectory::Folder(folder) = config("gateway.toml").voices.directory else { panic!("no folder is named") };
    let folder = folder.display();
    assert!(read("compose.yaml").contains(&format!("    - {folder}\n")));
    assert!(read("kubernetes.yaml").contains(&format!("{{name: voices, mountPath: {folder}}}\n")));
}

#[test]
fn a_process_is_not_killed_before_its_streams_had_their_time() {
    let grace = config("gateway.toml").server.drain_grace.as_secs();
    let seconds = |manifest: &str, word: &str| numbers(manifest, word).into_iter().min().unwrap();
    let pause = seconds("kubernetes.yaml", "command: [sleep, \"");
    assert!(
        u64::from(numbers("kubernetes.yaml", "terminationGracePeriodSeconds: ").into_iter().max().unwrap())
            > grace + u64::from(pause)
    );
    assert!(u64::from(seconds("compose.yaml", "stop_grace_period: ")) > grace);
}

/// A metric of the catalogue by the name of one of its series.
fn metric(series: &str) -> Option<&'static catalogue::Metric> {
    let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|part| series.strip_suffix(part));
    let is = |metric: &&catalogue::Metric| match metric.kind {
        Kind::Histogram(_) => of_histogram == Some(metric.name),
        Kind::Counter | Kind::Gauge => metric.name == series,
    };
    catalogue::ALL.iter().find(is)
}

#[test]
fn alerts_ask_for_series_and_labels_that_the_server_has() {
    let rules = read("alerts.yaml");
    let told = |line: &&str| !["#", "summary:", "action:", "annotations:"].iter().any(|word| line.starts_with(word));
    let expressions: String = rules.lines().map(str::trim).filter(told).collect::<Vec<_>>().join("\n");
    let mut found = 0;
    for (at, _) in expressions.match_indices("omni_") {
        let rest = &expressions[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap();
        let series = &rest[..end];
        let metric = metric(series).unwrap_or_else(|| panic!("there is no {series}"));
        let matchers = rest[end..].strip_prefix('{').map_or("", |inside| inside.split('}').next().unwrap());
        for matcher in matchers.split(',').filter(|matcher| !matcher.is_empty()) {
            let label = matcher.split(['=', '!']).next().unwrap();
            assert!(metric.labels.contains(&label), "{series} has no label {label}");
        }
        found += 1;
    }
    assert!(found > 15, "only {found} series found");
}

#[test]
fn thresholds_of_the_alerts_follow_from_the_default_config() {
    let server = parse("", &folder(), &[]).unwrap().server;
    let rules = read("alerts.yaml");
    for (series, limit, percent) in [
        ("omni_key_connections", server.max_connections as u64, 80),
        ("omni_http_connections", server.max_connections as u64, 90),
        ("omni_http_input_bytes", server.max_input_bytes as u64, 90),
        ("omni_http_output_bytes", server.max_output_bytes as u64, 90),
    ] {
        let rule = format!("expr: {series} > {}\n", limit * percent / 100);
        assert!(rules.contains(&rule), "deploy/alerts.yaml lacks `{}`", rule.trim_end());
    }
}

#[test]
fn the_proxy_lets_through_what_the_server_takes() {
    let server = parse("", &folder(), &[]).unwrap().server;
    let proxy = read("nginx.conf");
    for (word, limit) in [
        ("client_max_body_size", format!("{}m", server.max_body_bytes >> 20)),
        ("proxy_pass", format!("http://{}", server.listen)),
        ("proxy_read_timeout", format!("{}s", server.idle_timeout.as_secs())),
        ("proxy_send_timeout", format!("{}s", server.idle_timeout.as_secs())),
    ] {
        assert!(proxy.contains(&format!(" {word} {limit};")), "deploy/nginx.conf: {word} is not {limit}");
    }
}
