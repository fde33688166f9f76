//! A plan for one rank equals that rank's part of the plan for all ranks.

use collectives::Rank;
use collectives::sweep::cases;

#[test]
fn a_rank_plans_for_itself_what_all_plan_for_it() {
    for case in (1..=13).chain([16, 17, 31]).flat_map(|n| cases(n, &[1, 3])) {
        let whole = case.plan().expect("a plan");
        for rank in (0..case.spec.ranks()).map(Rank) {
            let spec = case.spec.only_for(rank).expect("one of the ranks");
            let own = case.algorithm.plan(&spec).expect("a plan");
            assert_eq!(own.programs[rank.index()], whole.programs[rank.index()], "{case}, rank {rank}");
            assert_eq!(own.ranks(), whole.ranks());
            assert_eq!((own.chunks, own.scratch_blocks), (whole.chunks, whole.scratch_blocks), "{case}");
            assert!(own.lanes <= whole.lanes);
            let (ours, all) = (own.packing.map(|p| p.blocks), whole.packing.map(|p| p.blocks));
            assert!(ours <= all && ours.is_some() == all.is_some(), "{case}: {ours:?} of {all:?} blocks");
            let others = (0..).zip(&own.programs).filter(|(other, _)| *other != rank.0);
            assert!(others.map(|(_, program)| program).all(|program| program.steps.is_empty()), "{case}");
        }
    }
}
