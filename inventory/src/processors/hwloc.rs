//! Reader of hwloc's XML, version 2, as `hwloc_topology_export_xmlbuffer` and `lstopo --of xml` write it.
//!
//! Objects of types that are unknown here are left out; the parts within them move outwards.

use super::{Near, NearKind, Part, PartKind, Processors, list::parse_cpu_set};
use roxmltree::{Document, Node, ParsingOptions};

/// Reads hwloc's XML.
pub(super) fn read(xml: &str) -> Result<Processors, String> {
    let failed = |why: String| format!("hwloc's XML: {why}");
    // The text names the DTD and defines no entities.
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(xml, options).map_err(|error| failed(error.to_string()))?;
    let root = document.root_element();
    let version = root.attribute("version").unwrap_or("1");
    if !version.starts_with("2.") {
        return Err(failed(format!("version {version}, and version 2 is read here")));
    }
    let objects: Vec<Node<'_, '_>> = root.descendants().filter(|node| node.has_tag_name("object")).collect();
    let mut parts: Vec<Part> = objects.iter().filter_map(|object| part(*object)).collect();
    label_cores(root, &mut parts);
    let near = objects.iter().filter_map(|object| near(*object)).collect();
    let library = objects.iter().find_map(|object| info(*object, "hwlocVersion"));
    let source = library.map_or_else(|| "hwloc".to_owned(), |version| format!("hwloc {version}"));
    Processors::nest(source, parts, near).ok_or_else(|| failed("no cores".to_owned()))
}

/// Returns the value of an `info` element of an object or kind.
fn info<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    let infos = node.children().filter(|child| child.has_tag_name("info"));
    infos.filter(|info| info.attribute("name") == Some(name)).find_map(|info| info.attribute("value"))
}

fn part(object: Node<'_, '_>) -> Option<Part> {
    let number = |name: &str| object.attribute(name).and_then(|text| text.parse::<u64>().ok());
    let kind = match object.attribute("type")? {
        "Machine" => PartKind::Machine,
        "Package" => PartKind::Package,
        "NUMANode" => PartKind::Numa,
        "Die" => PartKind::Die,
        "Group" => PartKind::Group,
        "L1Cache" => PartKind::L1,
        "L2Cache" => PartKind::L2,
        "L3Cache" => PartKind::L3,
        "L4Cache" => PartKind::L4,
        "Core" => PartKind::Core,
        _ => return None,
    };
    let is_numbered = matches!(kind, PartKind::Package | PartKind::Numa | PartKind::Die | PartKind::Core);
    let own = number("os_index").and_then(|index| u32::try_from(index).ok()).filter(|_| is_numbered);
    let part = Part::new(kind, own, parse_cpu_set(object.attribute("cpuset")?)?);
    Some(Part {
        bytes: number("cache_size").or(number("local_memory")).filter(|bytes| *bytes > 0),
        label: info(object, "CPUModel").map(str::to_owned),
        ..part
    })
}

/// Labels the cores where the machine has two kinds of them.
fn label_cores(root: Node<'_, '_>, parts: &mut [Part]) {
    let kinds = root.children().filter(|node| node.has_tag_name("cpukind"));
    // The kind with the highest number is the fastest. Without numbers, Intel's names tell.
    let rank = |kind: &Node<'_, '_>| {
        let forced = kind.attribute("forced_efficiency").and_then(|text| text.parse::<i64>().ok());
        let by_name = || info(*kind, "CoreType").map(|name| i64::from(name != "IntelAtom"));
        forced.filter(|rank| *rank >= 0).or_else(by_name)
    };
    let mut kinds: Vec<(i64, Vec<u32>)> =
        kinds.filter_map(|kind| Some((rank(&kind)?, parse_cpu_set(kind.attribute("cpuset")?)?))).collect();
    kinds.sort_unstable();
    let [slow, fast] = kinds.as_slice() else { return };
    for (kind, label) in [(slow, "efficiency"), (fast, "performance")] {
        let of_kind = |part: &&mut Part| {
            part.kind == PartKind::Core && part.cpus.iter().all(|cpu| kind.1.binary_search(cpu).is_ok())
        };
        parts.iter_mut().filter(of_kind).for_each(|part| part.label = Some(label.to_owned()));
    }
}

/// Returns a network or RDMA device with its name. The threads near it are those of the object around it.
fn near(object: Node<'_, '_>) -> Option<(String, Near)> {
    let kind = match object.attribute("osdev_type")? {
        "2" => NearKind::Network,
        "3" => NearKind::Rdma,
        _ => return None,
    };
    let around = object.ancestors().find_map(|node| node.attribute("cpuset"))?;
    Some((object.attribute("name")?.to_owned(), Near { kind, cpus: parse_cpu_set(around)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_and_other_texts_are_refused_in_one_line() {
        for (xml, why) in [
            ("<topology version=\"3.0\"/>", "version 3.0"),
            ("<topology/>", "version 1,"),
            ("<topology version=\"2.0\"/>", "no cores"),
            ("nonsense", "hwloc's XML: "),
        ] {
            let error = read(xml).expect_err(xml);
            assert!(error.contains(why) && !error.contains('\n'), "{error}");
        }
    }
}
