//! Clusters: reachability, routes, and the checks of files.

use super::*;

const SPEED: Speed = Speed { latency: 5e-6, bytes_per_second: 1e9 };

fn names(cluster: &Cluster, from: u32, to: u32) -> Vec<&str> {
    let route = cluster.route(Rank(from), Rank(to)).expect("a way");
    route.links().iter().map(|link| cluster.links()[*link as usize].name.as_str()).collect()
}

#[test]
fn cables_lead_to_neighbours_only_and_each_way_is_a_link_of_its_own() {
    let ring = Cluster::ring(5, SPEED);
    assert_eq!((ring.links().len(), ring.ranks()), (10, 5));
    assert_eq!(names(&ring, 4, 0), ["host 4 to host 0"]);
    assert_ne!(ring.route(Rank(4), Rank(0)), ring.route(Rank(0), Rank(4)));
    assert_eq!((ring.route(Rank(0), Rank(2)), ring.route(Rank(0), Rank(0))), (None, None));
    assert_eq!(ring.reach(), Reach::new(5, |a, b| b.0 - a.0 == 1 || b.0 - a.0 == 4));
    assert!(Cluster::mesh(4, SPEED).reach().is_complete());
    assert_eq!((Cluster::ring(2, SPEED).links().len(), Cluster::ring(1, SPEED).links().len()), (2, 0));
}

#[test]
fn hypercubes_and_tori_have_the_cables_of_their_dimensions() {
    let cube = Cluster::hypercube(3, SPEED);
    assert_eq!((cube.ranks(), cube.links().len()), (8, 2 * 12));
    assert!(cube.route(Rank(5), Rank(1)).is_some() && cube.route(Rank(5), Rank(2)).is_none());
    let torus = Cluster::torus(&[3, 4], SPEED);
    assert_eq!((torus.ranks(), torus.links().len()), (12, 2 * 2 * 12));
    for (a, b, wired) in [(0, 3, true), (0, 8, true), (0, 1, true), (0, 5, false), (3, 4, false)] {
        assert_eq!(torus.route(Rank(a), Rank(b)).is_some(), wired, "{a} {b}");
    }
    // A ring of two hosts has one cable between them.
    assert_eq!(Cluster::torus(&[2, 2], SPEED).links().len(), 8);
}

#[test]
fn ranks_of_a_host_share_its_memory_and_its_way_out() {
    let tiers = [
        Tier { hosts: 4, oversubscription: 2.0, latency: 0.0 },
        Tier { hosts: 16, oversubscription: 1.0, latency: 1e-6 },
    ];
    let cluster = Cluster::switched(16, (8, IntraHost::default()), SPEED, &tiers).expect("it fits");
    assert_eq!((cluster.ranks(), cluster.host_of(Rank(17))), (128, 2));
    assert_eq!(names(&cluster, 8, 15), ["memory of host 1"]);
    assert_eq!(names(&cluster, 0, 24), ["host 0, up", "host 3, down"]);
    let far = ["host 0, up", "switch 0 of tier 0, up", "switch 3 of tier 0, down", "host 15, down"];
    assert_eq!(names(&cluster, 7, 127), far);
    let (near, far) = (cluster.route(Rank(0), Rank(24)), cluster.route(Rank(0), Rank(127)));
    let latency = |route: Option<Route>| route.map(|route| (route.latency * 1e6).round());
    assert_eq!((latency(near), latency(far)), (Some(5.0), Some(6.0)));
    let uplink = cluster.links().iter().find(|link| link.name == "switch 0 of tier 0, up").expect("one");
    assert!((uplink.bytes_per_second - 2e9).abs() < 1.0);
    assert_eq!(cluster.groups(), [1, 8, 32]);
}

#[test]
fn uplinks_that_never_limit_are_no_links() {
    let tiers = [
        Tier { hosts: 4, oversubscription: 1.0, latency: 0.0 },
        Tier { hosts: 16, oversubscription: 1.0, latency: 0.0 },
    ];
    let cluster = Cluster::switched(16, (1, IntraHost::default()), SPEED, &tiers).expect("it fits");
    assert_eq!((cluster.links().len(), names(&cluster, 0, 15)), (32, vec!["host 0, up", "host 15, down"]));
    let wrong = Tier { hosts: 6, ..tiers[0] };
    for tiers in [&[][..], &tiers[..1], &[tiers[0], wrong], &[wrong, tiers[1]]] {
        let refused = Cluster::switched(16, (1, IntraHost::default()), SPEED, tiers);
        assert_eq!(refused, Err(ClusterError::Tiers { hosts: 16 }));
    }
}

#[test]
fn a_port_is_shared_by_the_cables_that_end_there_and_a_second_cable_adds_its_own() {
    let text = "
        shape = \"cables\"
        hosts = 3
        link = { latency_us = 5.0, bandwidth_gbps = 8.0 }
        port = [{ name = \"0/hub\", bandwidth_gbps = 12.0 }]
        cable = [{ ends = [\"0/hub\", \"1\"] }, { ends = [\"2\", \"0/hub\"], latency_us = 7.0 }, { ends = \
        [\"1\", \"2\"] }, { ends = [\"2\", \"1\"] }]
    ";
    let cluster = Cluster::from_toml(text).expect("right");
    assert_eq!(names(&cluster, 0, 1), ["port hub of host 0, out", "host 0 to host 1"]);
    assert_eq!(names(&cluster, 2, 0), ["host 2 to host 0", "port hub of host 0, in"]);
    assert!((cluster.route(Rank(0), Rank(2)).expect("a cable").latency - 7e-6).abs() < 1e-12);
    let both = cluster.route(Rank(1), Rank(2)).expect("two cables").links()[0];
    assert!((cluster.links()[both as usize].bytes_per_second - 2e9).abs() < 1.0);
}

#[test]
fn a_fabric_file_is_a_cluster() {
    let text = "
        profile = \"ib\"
        link = { latency_us = 300.0, bandwidth_gbps = 2.0, seed = 7 }
        node = [{ name = \"a\", device = [{ name = \"x\" }] }, { name = \"b\", device = [{ name = \"y\", \
        port = \"up\" }] }]
        cable = [{ ends = [\"b/y\", \"a/x\"], loss = 0.0 }, { ends = [\"a/z\", \"a/z\"] }]
    ";
    let cluster = Cluster::from_toml(text).expect("right");
    let route = cluster.route(Rank(0), Rank(1)).expect("a cable");
    assert!((route.latency - 3e-4).abs() < 1e-12 && cluster.links().len() == 2);
    assert!((cluster.links()[0].bytes_per_second - 2.5e8).abs() < 1.0);
}

#[test]
fn what_is_wrong_is_said_with_a_way_out() {
    let link = "link = { latency_us = 1.0, bandwidth_gbps = 1.0 }\n";
    for (text, expected) in [
        ("shape = \"msh\"\nhosts = 4", "did you mean `mesh`"),
        ("shape = \"mesh\"", "`hosts = 4`"),
        ("shape = \"mesh\"\nhosts = 4", "`latency_us` and `bandwidth_gbps`"),
        ("shape = \"mesh\"\nhosts = 0", "at least 1"),
        ("shape = \"hypercube\"\nhosts = 6", "power of two"),
        ("shape = \"torus\"\ndimensions = [4, 0]", "at least 1"),
        ("shape = \"torus\"\ndimensions = [70000, 70000]", "a cluster that can be"),
        ("shape = \"mesh\"\nhosts = 5\nports = 3", "host 0 has 4 cables and 3 ports"),
        ("shape = \"cables\"\nhosts = 2\ncable = [{ ends = [\"0\", \"2\"] }]", "`2`"),
        ("shape = \"cables\"\nhosts = 2\ncable = [{ ends = [\"1\", \"1\"] }]", "same host"),
        ("shape = \"mesh\"\nhosts = 4\nhots = 4", "line 4"),
        ("shape = ", "line 2"),
    ] {
        let text = if expected.contains("latency_us") { text.to_owned() } else { format!("{link}{text}") };
        let error = Cluster::from_toml(&text).expect_err(&text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    for number in ["-1.0", "nan", "inf", "0.0"] {
        let text =
            format!("shape = \"mesh\"\nhosts = 2\nlink = {{ latency_us = 1.0, bandwidth_gbps = {number} }}");
        assert_eq!(Cluster::from_toml(&text).is_ok(), number == "inf", "{number}");
    }
}

#[test]
fn hosts_times_ranks_per_host_do_not_overflow() {
    let link = "[link]\nlatency_us = 1\nbandwidth_gbps = 1\n";
    for shape in ["ring", "switches"] {
        let text = |hosts: u32, ranks: u32| {
            format!("shape = \"{shape}\"\nhosts = {hosts}\nranks_per_host = {ranks}\n{link}")
        };
        for (hosts, ranks) in [(65_536, 65_536), (65_535, 65_536), (4_096, 4_097)] {
            let error = Cluster::from_toml(&text(hosts, ranks)).expect_err("too many").to_string();
            assert!(
                error.contains(&format!("{hosts} hosts of {ranks} ranks have more than 16777216")),
                "{error}"
            );
        }
        let largest = Cluster::from_toml(&text(256, 65_536)).expect("as many as may be");
        assert_eq!((largest.ranks(), largest.groups().first()), (1 << 24, Some(&1)));
    }
    let tiers = [Tier { hosts: u32::MAX, oversubscription: 1.0, latency: 0.0 }];
    let inside = (2, IntraHost::default());
    let cluster = Cluster::switched(4, inside, SPEED, &tiers).expect("a switch with free ports");
    assert_eq!(cluster.groups(), [1, 2]);
    let error = Cluster::switched(1 << 16, (1 << 16, IntraHost::default()), SPEED, &tiers);
    assert!(matches!(error, Err(ClusterError::Ranks { .. })), "{error:?}");
}
