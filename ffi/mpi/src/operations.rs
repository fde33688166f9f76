//! What handles of operations stand for: Open MPI's own by their addresses, and a program's functions by numbers.
//!
//! MLX brings functions of its own for elements that MPI knows nothing of: float16, bfloat16, and the order of complex
//! numbers. They are loops over single elements. So when such an operation is first used, it is asked for the results of a
//! few pairs of elements; if they are what one of our kernels makes of them, it is that kernel that is used from then on. A
//! function that no kernel agrees with is called itself ([`crate::reduce`]).
//!
//! A kernel differs from MLX's function in one way, for the better: where NaN takes part the result is NaN, whatever the
//! order. Hence no pair has a NaN in it, as its kernel reads it.
//!
//! # Safety
//! A program's function is called as `MPI_User_function` says: with two arrays of as many elements as it is told, of the
//! size that the type has.

use crate::{
    boundary::{Failure, Outcome},
    datatypes::Datatype,
    objects::{self, Handle},
};
use std::{
    ffi::{c_int, c_void},
    sync::{Arc, OnceLock, PoisonError, RwLock},
};
use tbccl::{DType, ReduceOp, kernels::Reducer};

/// A program's function: `inout[i] = in[i] OP inout[i]`. The type is passed on as the program gave it.
pub(crate) type UserFunction = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut c_int, *mut Handle);

/// An operation.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// One of Open MPI's, which is one of ours.
    Ours(ReduceOp),
    /// A program's.
    Foreign(Arc<Foreign>),
}

/// A program's operation.
#[derive(Debug)]
pub(crate) struct Foreign {
    function: UserFunction,
    /// What it turned out to be on elements of two bytes.
    on_two_bytes: OnceLock<Option<Meaning>>,
    /// What it turned out to be on complex numbers.
    on_complex: OnceLock<Option<Meaning>>,
}

/// One of our kernels.
pub(crate) type Meaning = (DType, ReduceOp);

static MADE: RwLock<Vec<Arc<Foreign>>> = RwLock::new(Vec::new());

/// Handles of made operations begin here. Nothing has such an address.
const FIRST: usize = 0x800;
/// How many there can be.
const MOST: usize = 0x700;

impl Operation {
    /// Of a handle.
    #[inline]
    pub(crate) fn of(handle: Handle) -> Outcome<Operation> {
        let number = handle as usize;
        let ours = [
            (&objects::ompi_mpi_op_sum, ReduceOp::Sum),
            (&objects::ompi_mpi_op_max, ReduceOp::Max),
            (&objects::ompi_mpi_op_min, ReduceOp::Min),
        ];
        if let Some((_, op)) = ours.iter().find(|(object, _)| object.handle() == number) {
            return Ok(Operation::Ours(*op));
        }
        let made = MADE.read().unwrap_or_else(PoisonError::into_inner);
        let foreign = number.checked_sub(FIRST).and_then(|at| made.get(at).cloned());
        foreign
            .map(Operation::Foreign)
            .ok_or_else(|| Failure::wrong("not an operation that this library has"))
    }
}

/// Makes an operation of a program's function.
pub(crate) fn create(function: UserFunction) -> Outcome<Handle> {
    let mut made = MADE.write().unwrap_or_else(PoisonError::into_inner);
    if made.len() == MOST {
        return Err(Failure::wrong("too many operations"));
    }
    made.push(Arc::new(Foreign::new(function)));
    Ok(std::ptr::without_provenance_mut(FIRST + made.len() - 1))
}

impl Foreign {
    fn new(function: UserFunction) -> Foreign {
        Foreign { function, on_two_bytes: OnceLock::new(), on_complex: OnceLock::new() }
    }

    /// Which of our kernels does the same on elements of this type, if one does.
    pub(crate) fn meaning(&self, datatype: Datatype, handle: Handle) -> Option<Meaning> {
        match datatype {
            Datatype::Bytes(2) => *self.on_two_bytes.get_or_init(|| self.find(&TWO_BYTES, handle)),
            Datatype::Known(DType::Complex64) => *self.on_complex.get_or_init(|| self.find(&COMPLEX, handle)),
            _ => None,
        }
    }

    fn find(&self, candidates: &[Meaning], handle: Handle) -> Option<Meaning> {
        candidates.iter().copied().find(|meaning| self.agrees(*meaning, handle))
    }

    /// Does it make of all pairs of known elements what our kernel makes of them?
    fn agrees(&self, (dtype, op): Meaning, handle: Handle) -> bool {
        let Ok(kernel) = Reducer::new(dtype, op) else { return false };
        let (first, second) = pairs(dtype);
        let count = first.len() * size_of::<u64>() / dtype.size();
        let (mut theirs, mut ours) = (second.clone(), second.clone());
        // SAFETY: both are arrays of so many elements, aligned for any of them.
        unsafe { self.apply(first.as_ptr().cast(), theirs.as_mut_ptr().cast(), count as c_int, handle) };
        let place: *mut u8 = ours.as_mut_ptr().cast();
        // SAFETY: so many elements of the type on both sides, initialised and aligned; the result replaces the second.
        unsafe { kernel.reduce(place, first.as_ptr().cast(), second.as_ptr().cast(), count) };
        theirs == ours
    }

    /// `inout[i] = in[i] OP inout[i]` for so many elements.
    ///
    /// # Safety
    /// Both are so many elements of the type of this handle, and do not overlap.
    pub(crate) unsafe fn apply(&self, from: *const c_void, inout: *mut c_void, count: c_int, handle: Handle) {
        let (mut count, mut handle) = (count, handle);
        // SAFETY: the caller's promise is the function's contract. It reads what is not to be written, as MPI has it.
        unsafe { (self.function)(from.cast_mut(), inout, &raw mut count, &raw mut handle) }
    }
}

/// What a function of elements of two bytes may be. bfloat16 first: patterns of it that float16 has for NaN tell which is
/// meant.
const TWO_BYTES: [Meaning; 6] = [
    (DType::Bf16, ReduceOp::Sum),
    (DType::Bf16, ReduceOp::Max),
    (DType::Bf16, ReduceOp::Min),
    (DType::F16, ReduceOp::Sum),
    (DType::F16, ReduceOp::Max),
    (DType::F16, ReduceOp::Min),
];

/// What a function of complex numbers may be, beside the sum that MPI has itself.
const COMPLEX: [Meaning; 3] =
    [(DType::Complex64, ReduceOp::Max), (DType::Complex64, ReduceOp::Min), (DType::Complex64, ReduceOp::Sum)];

/// Finite numbers of float16, as bits, without zeros and what is too small to be normal: their handling is a matter of how
/// the processor is set.
const HALVES: [u16; 12] =
    [0x3c00, 0xbc00, 0x4000, 0x4248, 0xc500, 0x3555, 0x5640, 0xd640, 0x6400, 0x4101, 0x3801, 0xb801];

/// Numbers of bfloat16, as bits, that float16 has for NaN.
const ONLY_BF16: [u16; 4] = [0x7e00, 0xfe00, 0x7c01, 0xfd23];

/// Parts of complex numbers.
const PARTS: [f32; 4] = [1.0, -2.5, 3.0, 0.75];

/// All pairs of some elements of a type: the first of each, and the second of each. In words, so that they are aligned.
fn pairs(dtype: DType) -> (Vec<u64>, Vec<u64>) {
    let elements: Vec<u64> = match dtype {
        DType::Bf16 => HALVES.iter().chain(&ONLY_BF16).map(|bits| u64::from(*bits)).collect(),
        DType::F16 => HALVES.iter().map(|bits| u64::from(*bits)).collect(),
        _ => {
            let bits = |part: f32| u64::from(part.to_bits());
            PARTS.iter().flat_map(|re| PARTS.iter().map(move |im| bits(*re) | bits(*im) << 32)).collect()
        }
    };
    let all = elements.iter().flat_map(|first| elements.iter().map(move |second| (*first, *second)));
    let (first, second): (Vec<u64>, Vec<u64>) = all.unzip();
    (packed(&first, dtype.size()), packed(&second, dtype.size()))
}

/// Elements of so many bytes, each in the low bytes of a word, side by side as in memory. Their number fills words.
fn packed(elements: &[u64], bytes: usize) -> Vec<u64> {
    let side_by_side: Vec<u8> = elements.iter().flat_map(|e| e.to_ne_bytes()[..bytes].to_vec()).collect();
    let words = side_by_side.chunks_exact(size_of::<u64>());
    words.map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// A function as MLX has them: a loop over single elements.
    macro_rules! function {
        ($name:ident, $t:ty, |$in:ident, $acc:ident| $result:expr) => {
            unsafe extern "C-unwind" fn $name(a: *mut c_void, b: *mut c_void, n: *mut c_int, _: *mut Handle) {
                // SAFETY: the contract of such a function.
                unsafe {
                    for at in 0..*n as usize {
                        let place = b.cast::<$t>().add(at);
                        let ($in, $acc) = (a.cast::<$t>().add(at).read(), place.read());
                        place.write($result);
                    }
                }
            }
        };
    }

    type Complex = [f32; 2];
    function!(sum_f16, f16, |x, acc| f16::from_f32(acc.to_f32() + x.to_f32()));
    function!(max_f16, f16, |x, acc| if acc < x { x } else { acc });
    function!(min_f16, f16, |x, acc| if x < acc { x } else { acc });
    function!(sum_bf16, bf16, |x, acc| bf16::from_f32(acc.to_f32() + x.to_f32()));
    function!(max_bf16, bf16, |x, acc| if acc < x { x } else { acc });
    function!(min_bf16, bf16, |x, acc| if x < acc { x } else { acc });
    function!(max_that_keeps_nan, f16, |x, acc| if x.is_nan() || acc < x { x } else { acc });
    function!(min_that_keeps_nan, bf16, |x, acc| if x.is_nan() || x < acc { x } else { acc });
    function!(max_complex, Complex, |x, acc| if acc < x { x } else { acc });
    function!(min_complex, Complex, |x, acc| if x < acc { x } else { acc });
    function!(product, f16, |x, acc| f16::from_f32(acc.to_f32() * x.to_f32()));
    function!(by_real_part, Complex, |x, acc| if acc[0] < x[0] { x } else { acc });

    #[test]
    fn functions_as_mlx_has_them_turn_out_to_be_our_kernels() {
        let complex = Datatype::Known(DType::Complex64);
        let two = Datatype::Bytes(2);
        let expected: [(UserFunction, Datatype, DType, ReduceOp); 10] = [
            (sum_f16, two, DType::F16, ReduceOp::Sum),
            (max_f16, two, DType::F16, ReduceOp::Max),
            (min_f16, two, DType::F16, ReduceOp::Min),
            (sum_bf16, two, DType::Bf16, ReduceOp::Sum),
            (max_bf16, two, DType::Bf16, ReduceOp::Max),
            (min_bf16, two, DType::Bf16, ReduceOp::Min),
            (max_that_keeps_nan, two, DType::F16, ReduceOp::Max),
            (min_that_keeps_nan, two, DType::Bf16, ReduceOp::Min),
            (max_complex, complex, DType::Complex64, ReduceOp::Max),
            (min_complex, complex, DType::Complex64, ReduceOp::Min),
        ];
        for (at, (function, datatype, dtype, op)) in expected.into_iter().enumerate() {
            let foreign = Foreign::new(function);
            for _ in 0..2 {
                assert_eq!(
                    foreign.meaning(datatype, std::ptr::null_mut()),
                    Some((dtype, op)),
                    "function {at}"
                );
            }
        }
    }

    #[test]
    fn a_function_that_is_none_of_our_kernels_is_not_taken_for_one() {
        let complex = Datatype::Known(DType::Complex64);
        for (function, datatype) in [
            (product as UserFunction, Datatype::Bytes(2)),
            (by_real_part, complex),
            (sum_f16, Datatype::Bytes(4)),
        ] {
            assert_eq!(Foreign::new(function).meaning(datatype, std::ptr::null_mut()), None);
        }
    }

    #[test]
    fn handles_lead_to_what_they_were_given_for() {
        let made = create(max_f16).expect("an operation");
        assert!(matches!(Operation::of(made), Ok(Operation::Foreign(_))));
        let sum = std::ptr::without_provenance_mut(objects::ompi_mpi_op_sum.handle());
        assert!(matches!(Operation::of(sum), Ok(Operation::Ours(ReduceOp::Sum))));
        for number in [0, FIRST + MOST, usize::MAX, objects::ompi_mpi_float.handle()] {
            Operation::of(std::ptr::without_provenance_mut(number)).expect_err("not an operation");
        }
    }
}
