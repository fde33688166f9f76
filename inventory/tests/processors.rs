//! Processors of recorded machines, which stand in `tests/data/machines` of the repository.

use inventory::{Inventory, NearKind, Part, PartKind, Processors, Recording};
use std::{fs, path::Path};

fn processors(name: &str) -> Processors {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/machines").join(format!("{name}.txt"));
    let recording = Recording::from_text(&fs::read_to_string(path).expect("a recording")).expect("valid");
    Inventory::read(&recording).processors.unwrap_or_else(|| panic!("{name} has processors"))
}

/// Number and threads of each part of a kind.
fn parts(machine: &Part, kind: PartKind) -> Vec<(Option<u32>, Vec<u32>)> {
    machine.all(kind).iter().map(|part| (part.number, part.cpus.clone())).collect()
}

#[test]
fn two_sockets_have_a_memory_and_a_cache_each_and_the_adapter_is_near_the_second() {
    let xeon = processors("linux-xeon-two-sockets");
    assert_eq!(xeon.source, "sysfs");
    let sockets = [vec![0, 1, 2, 3, 8, 9, 10, 11], vec![4, 5, 6, 7, 12, 13, 14, 15]];
    for kind in [PartKind::Package, PartKind::Numa] {
        let expected = [0, 1].map(|number| (Some(number), sockets[number as usize].clone()));
        assert_eq!(parts(&xeon.machine, kind), expected);
    }
    let memory: Vec<_> = xeon.machine.all(PartKind::Numa).iter().map(|node| node.bytes).collect();
    assert_eq!(memory, [Some(128 << 30), Some(128 << 30)]);
    assert_eq!(parts(&xeon.machine, PartKind::Core).len(), 8);
    let near = &xeon.near["mlx5_0"];
    assert_eq!((near.kind, &near.cpus), (NearKind::Rdma, &sockets[1]));
    assert_eq!(xeon.near["eno1"].cpus, sockets[0]);
}

#[test]
fn hwloc_and_sysfs_say_the_same_of_a_machine() {
    let (hwloc, mut sysfs) = (processors("linux-xeon-hwloc"), processors("linux-xeon-two-sockets"));
    assert_eq!(hwloc.source, "hwloc 2.9.0");
    // sysfs numbers the cores of each package, hwloc's synthetic machine all of them; only sysfs has a model.
    fn without_names(part: &mut Part) {
        part.label = None;
        part.number = part.number.filter(|_| part.kind != PartKind::Core);
        part.parts.iter_mut().for_each(without_names);
    }
    let mut machine = hwloc.machine;
    without_names(&mut machine);
    without_names(&mut sysfs.machine);
    assert_eq!(machine, sysfs.machine);
    assert_eq!(hwloc.near, sysfs.near);
}

#[test]
fn a_socket_may_have_several_caches_of_level_3() {
    let epyc = processors("linux-epyc-four-caches").machine;
    let caches: Vec<_> = parts(&epyc, PartKind::L3).into_iter().map(|(_, cpus)| cpus).collect();
    assert_eq!(caches, [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]);
    assert_eq!(epyc.all(PartKind::Package).len(), 1);
    assert_eq!(epyc.all(PartKind::Numa).len(), 4);
}

/// Cores of each label, and caches of level 2 with the cores of each.
fn kinds(name: &str) -> (Vec<(String, usize)>, Vec<usize>) {
    let machine = processors(name).machine;
    let mut labels: Vec<(String, usize)> = Vec::new();
    for core in machine.all(PartKind::Core) {
        let label = core.label.clone().unwrap_or_default();
        match labels.last_mut() {
            Some((last, count)) if *last == label => *count += 1,
            _ => labels.push((label, 1)),
        }
    }
    let caches = machine.all(PartKind::L2).iter().map(|cache| cache.all(PartKind::Core).len()).collect();
    (labels, caches)
}

#[test]
fn performance_and_efficiency_cores_are_told_apart() {
    let expected =
        |fast: usize, slow: usize| vec![("performance".to_owned(), fast), ("efficiency".to_owned(), slow)];
    assert_eq!(kinds("mac-studio-m3-ultra"), (expected(24, 8), vec![6, 6, 6, 6, 4, 4]));
    assert_eq!(kinds("mac-mini-m4-pro"), (expected(10, 4), vec![5, 5, 4]));
    assert_eq!(kinds("mac-mini-m4-thunderbolt4"), (expected(4, 6), vec![4, 6]));
    assert_eq!(kinds("linux-hybrid-thunderbolt"), (expected(4, 8), vec![1, 1, 1, 1, 4, 4]));
}

#[test]
fn a_virtual_machine_without_memories_has_cores_and_caches() {
    let vm = processors("linux-vm").machine;
    assert_eq!(parts(&vm, PartKind::Numa), []);
    assert_eq!(parts(&vm, PartKind::Core), [(Some(0), vec![0]), (Some(1), vec![1])]);
    assert_eq!(vm.all(PartKind::L3)[0].bytes, Some(32 << 20));
}

#[test]
fn a_controller_near_all_threads_is_near_none_in_particular() {
    assert!(processors("linux-hybrid-thunderbolt").near.is_empty());
}
