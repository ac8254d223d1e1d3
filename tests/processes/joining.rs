//! Who may join, and how one ends that cannot.

use super::nodes::{both_run, omni, running};
use crate::support::engine::{becomes, frames, root, say};
use crate::support::nodes::{Authority, Cluster, Node, lines};
use crate::support::omni::Omni;
use omni_actors::config::ClusterTls;
use omni_actors::core::ids::StageName;
use omni_actors::engine::Service;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_another_checkpoint_is_listed_with_the_reason_and_not_used() {
    let cluster = Cluster::of(&omni());
    let other =
        cluster.node_of(&root().join("assets/voice/checkpoint"), "other", &cluster.authority.certify("other"), "");
    let _good = cluster.node("good", "");
    let gateway = cluster.gateway(|_| {}).await;
    becomes(&gateway, "both have joined", |health| health.nodes.len() == 2).await;
    assert!(say(&gateway, frames(4, 1)).await.end.unwrap().is_ok());
    let health = gateway.health();
    let listed = health.nodes.iter().find(|node| node.name == "other").unwrap();
    for stage in &listed.stages {
        let reason = stage.reason.as_deref().unwrap_or_default();
        assert!(!stage.used && reason.starts_with("its checkpoint has fingerprint"), "{listed:?}");
    }
    assert_eq!(running(&health, StageName::Talker, "other"), 0);
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_joins_without_a_certificate_of_the_authority() {
    let cluster = Cluster::of(&omni());
    let _good = cluster.node("good", "");
    let gateway = cluster.gateway(|_| {}).await;
    // It trusts the gateway, and shows what another authority has signed, which it trusts, too.
    let other = Authority::new();
    let (strange, both) = (other.certify("stranger"), other.ca().with_file_name("both.pem"));
    let authorities = [other.ca(), cluster.authority.ca()].map(|ca| std::fs::read(ca).unwrap());
    std::fs::write(&both, authorities.concat()).unwrap();
    let strange = ClusterTls { ca: both, ..strange };
    let stranger = cluster.node_of(&cluster.checkpoint, "stranger", &strange, "");
    let plain = Node::start(&[cluster.address], &cluster.checkpoint, "plain", "insecure = true");
    for node in [&stranger, &plain] {
        node.says("Unable to connect");
    }
    // What they would have, had they been let in, is there by the time at which another one is.
    let _late = cluster.node("late", "");
    becomes(&gateway, "the late one joins", |health| both_run(health, "late")).await;
    let mut names: Vec<_> = gateway.health().nodes.into_iter().map(|node| node.name).collect();
    names.sort();
    assert_eq!(names, ["good", "late"]);
}

#[test]
fn what_cannot_join_ends_with_a_code_that_says_whether_to_try_again() {
    let authority = Authority::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let stages = "[stages.talker]\nplacement = \"nodes\"\n[cluster]\n";
    let ends = |command: &str, config: &str| {
        let omni = Omni::new();
        let file = omni.file("config.toml", config);
        omni.arguments(&[command, &file, "--set", "server.listen=127.0.0.1:0"]).run()
    };
    let listens = format!("{stages}insecure = true\nlisten = \"{at}\"");
    ends("run", &listens).exits(1).tells("cluster: ");
    let tls = |certificate: &str, key: &str| {
        let (certificate, key) = (authority.certify(certificate), authority.certify(key));
        format!("listen = \"{at}\"\n{}", lines(&ClusterTls { key: key.key, ..certificate }))
    };
    for command in ["run", "check"] {
        let wrong = ends(command, &format!("{stages}{}", tls("one", "two")));
        let told = format!("{}{}", wrong.exits(2).stdout, wrong.stderr);
        assert!(told.contains("two.key: it is not the key of") && told.contains("one.pem"), "{told}");
    }
    // Nobody would join it, and it would join nobody.
    ends("run", &format!("[cluster]\n{}", tls("one", "one"))).exits(2).tells("no stage of this server is on nodes");
    let node = format!("[cluster]\nstages = [\"talker\"]\n{}", tls("one", "one"));
    ends("run", &node).exits(2).tells("`omni-actors node` starts one");
    let fine = ends("check", &node);
    fine.succeeds().shows("cluster   a node, which runs talker for 1 gateway at a time; listens at 127.0.0.1");
    ends("check", &format!("{stages}{}", tls("one", "one"))).succeeds().shows("a gateway, with at most 8 nodes");
}
