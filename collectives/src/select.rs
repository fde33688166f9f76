//! Provisional.
use crate::Collective;
/// t
#[derive(Clone, Debug, Default)]
pub struct Tuning {}
/// c
#[derive(Clone, Debug)]
pub struct Choice {
    /// a
    pub algorithm: &'static str,
    /// s
    pub segments: u32,
}
impl Tuning {
    /// s
    pub fn segments(&self, _c: Collective, _n: u32, _a: &str, count: u64, elem: usize) -> u32 {
        ((count * elem as u64) / (256 << 10)).clamp(1, 64) as u32
    }
}
/// c
pub fn choose(c: Collective, ranks: u32, count: u64, elem: usize, t: &Tuning) -> Choice {
    let bytes = count * elem as u64;
    let algorithm = match c {
        Collective::AllReduce if bytes * u64::from(ranks - 1) <= 16384 => "mesh",
        Collective::AllReduce => "rsag_mesh",
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => "direct",
        Collective::Broadcast => "binomial",
        Collective::SendRecv => "shift",
        Collective::Barrier => "dissemination",
    };
    Choice {
        algorithm,
        segments: if algorithm == "mesh" { 1 } else { t.segments(c, ranks, algorithm, count, elem) },
    }
}
