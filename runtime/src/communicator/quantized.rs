//! The number of encodings of an `all_reduce` whose messages travel packed.
//!
//! Every rank gets the same bits. They are not those of the exact sum: [`Codec`]'s module gives the bound on
//! the error, which grows with the number of encodings.

use super::{Communicator, keys::PlanKey};
use crate::error::{Error, Result};
use collectives::{
    Codec, Collective, DType, Numerics, Spec, plan,
    schedule::InPlace,
    verify::{Credits, verify},
};
use topology::Rank;

impl Communicator {
    /// Returns the maximum number of times that an element is packed in an `all_reduce` of `count` elements.
    ///
    /// [`Codec::error_bound`] depends on it. The function plans for all ranks, which takes time where there
    /// are many.
    ///
    /// # Errors
    /// [`Error::Plan`] if there is no such plan.
    pub fn encodings_of(&self, count: u64, codec: Codec) -> Result<u32> {
        let shape = PlanKey {
            collective: Collective::AllReduce,
            count,
            elem_bytes: DType::F32.size() as u32,
            root: Rank(0),
            in_place: InPlace::No,
            uneven: false,
            numerics: Numerics::Fast,
            codec: Some(codec),
        };
        let (algorithm, _) = self.plans.choose(&shape)?;
        let spec = Spec::new(Collective::AllReduce, self.size())?.with_codec(Some(codec));
        let report = verify(&plan::plan(&spec, algorithm)?, Credits(0));
        report.map(|report| report.encodings).map_err(|fault| Error::InvalidArgument(fault.to_string()))
    }
}
