//! Operations behind handles: the address of an Open MPI object, or a number for a program's function.
//!
//! MLX brings functions of its own for float16, bfloat16 and the order of complex numbers, which MPI does not
//! have. They are loops over single elements. On its first use, such a function is tested on a few pairs of
//! elements. If its results equal those of a kernel of tbccl, all calls use that kernel from then on. A
//! function without an equivalent kernel is called itself ([`super::reduce`]).
//!
//! A kernel differs from MLX's function in one way, on purpose: a NaN in any contribution makes the result
//! NaN in any order. Therefore no test pair contains a NaN, as the kernel reads the pair.
//!
//! # Safety
//! A program's function is called as `MPI_User_function` says: with two arrays of as many elements as its
//! count says, each of the size of the datatype.

use super::{datatypes::Datatype, objects};
use crate::{Failure, Outcome};
use mlx_table::mpi::{Handle, UserFunction};
use std::{
    ffi::{c_int, c_void},
    sync::{Arc, OnceLock, PoisonError, RwLock},
};
use tbccl::{DType, ReduceOp, kernels::Reducer};

/// Operation of a reduction.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// One of Open MPI's operations that tbccl has.
    Builtin(ReduceOp),
    /// An operation of the program.
    User(Arc<UserOp>),
}

/// Operation made of a program's function.
#[derive(Debug)]
pub(crate) struct UserOp {
    function: UserFunction,
    /// Equivalent kernel for elements of two bytes, once tested.
    two_byte_kernel: OnceLock<Option<KernelId>>,
    /// Equivalent kernel for complex numbers, once tested.
    complex_kernel: OnceLock<Option<KernelId>>,
}

/// Kernel of tbccl: element type and operation.
pub(crate) type KernelId = (DType, ReduceOp);

static USER_OPS: RwLock<Vec<Arc<UserOp>>> = RwLock::new(Vec::new());

/// First handle of the program's operations. No object has such an address.
const FIRST_HANDLE: usize = 0x800;
/// Maximum number of the program's operations.
const MAX_USER_OPS: usize = 0x700;

impl Operation {
    /// Returns the operation of a handle.
    #[inline]
    pub(crate) fn from_handle(handle: Handle) -> Outcome<Operation> {
        let number = handle as usize;
        if let Some(op) = objects::operation(handle) {
            return Ok(Operation::Builtin(op));
        }
        let user_ops = USER_OPS.read().unwrap_or_else(PoisonError::into_inner);
        let user_op = number.checked_sub(FIRST_HANDLE).and_then(|at| user_ops.get(at).cloned());
        user_op.map(Operation::User).ok_or_else(|| Failure::usage("not an operation that this library has"))
    }
}

/// Makes an operation of a program's function.
pub(crate) fn create(function: UserFunction) -> Outcome<Handle> {
    let mut user_ops = USER_OPS.write().unwrap_or_else(PoisonError::into_inner);
    if user_ops.len() == MAX_USER_OPS {
        return Err(Failure::usage("too many operations"));
    }
    user_ops.push(Arc::new(UserOp::new(function)));
    Ok(std::ptr::without_provenance_mut(FIRST_HANDLE + user_ops.len() - 1))
}

impl UserOp {
    fn new(function: UserFunction) -> UserOp {
        UserOp { function, two_byte_kernel: OnceLock::new(), complex_kernel: OnceLock::new() }
    }

    /// Returns the kernel that gives the same results on elements of this datatype, if there is one.
    pub(crate) fn kernel(&self, datatype: Datatype, handle: Handle) -> Option<KernelId> {
        match datatype {
            Datatype::Derived(2) => {
                *self.two_byte_kernel.get_or_init(|| self.find_kernel(&TWO_BYTE_CANDIDATES, handle))
            }
            Datatype::Builtin(DType::Complex64) => {
                *self.complex_kernel.get_or_init(|| self.find_kernel(&COMPLEX_CANDIDATES, handle))
            }
            _ => None,
        }
    }

    fn find_kernel(&self, candidates: &[KernelId], handle: Handle) -> Option<KernelId> {
        candidates.iter().copied().find(|kernel| self.matches_kernel(*kernel, handle))
    }

    /// Whether the function gives the kernel's results on all test pairs.
    fn matches_kernel(&self, (dtype, op): KernelId, handle: Handle) -> bool {
        let Ok(kernel) = Reducer::new(dtype, op) else { return false };
        let (first, second) = sample_pairs(dtype);
        let count = first.len() * size_of::<u64>() / dtype.size();
        let (mut theirs, mut ours) = (second.clone(), second.clone());
        // SAFETY: both arrays have `count` elements, and words are aligned for any element type.
        unsafe { self.apply(first.as_ptr().cast(), theirs.as_mut_ptr().cast(), count as c_int, handle) };
        let result: *mut u8 = ours.as_mut_ptr().cast();
        // SAFETY: all three arrays have `count` initialized, aligned elements of the type, and nothing else
        // uses the result.
        unsafe { kernel.reduce(result, first.as_ptr().cast(), second.as_ptr().cast(), count) };
        theirs == ours
    }

    /// Computes `inout[i] = in[i] OP inout[i]` for `count` elements.
    ///
    /// # Safety
    /// Both arrays have `count` elements of the handle's datatype, and do not overlap.
    pub(crate) unsafe fn apply(&self, from: *const c_void, inout: *mut c_void, count: c_int, handle: Handle) {
        let (mut count, mut handle) = (count, handle);
        // SAFETY: the caller's contract is that of the function. As MPI requires, the function only reads its
        // first array.
        unsafe { (self.function)(from.cast_mut(), inout, &raw mut count, &raw mut handle) }
    }
}

/// Kernels tested for functions on elements of two bytes. bfloat16 is first: some of its samples are NaN as
/// float16, which tells the two types apart.
const TWO_BYTE_CANDIDATES: [KernelId; 6] = [
    (DType::Bf16, ReduceOp::Sum),
    (DType::Bf16, ReduceOp::Max),
    (DType::Bf16, ReduceOp::Min),
    (DType::F16, ReduceOp::Sum),
    (DType::F16, ReduceOp::Max),
    (DType::F16, ReduceOp::Min),
];

/// Kernels tested for functions on complex numbers. Open MPI itself has the sum.
const COMPLEX_CANDIDATES: [KernelId; 3] =
    [(DType::Complex64, ReduceOp::Max), (DType::Complex64, ReduceOp::Min), (DType::Complex64, ReduceOp::Sum)];

/// Finite samples of float16, as bits. No zeros and no subnormal numbers, whose treatment depends on
/// processor settings.
const F16_SAMPLES: [u16; 12] =
    [0x3c00, 0xbc00, 0x4000, 0x4248, 0xc500, 0x3555, 0x5640, 0xd640, 0x6400, 0x4101, 0x3801, 0xb801];

/// Samples of bfloat16, as bits, that are NaN as float16.
const BF16_ONLY_SAMPLES: [u16; 4] = [0x7e00, 0xfe00, 0x7c01, 0xfd23];

/// Real and imaginary parts of complex samples.
const COMPLEX_PARTS: [f32; 4] = [1.0, -2.5, 3.0, 0.75];

/// Returns the first and the second elements of all pairs of samples of a type. They are packed in words,
/// which are aligned for any type.
fn sample_pairs(dtype: DType) -> (Vec<u64>, Vec<u64>) {
    let elements: Vec<u64> = match dtype {
        DType::Bf16 => F16_SAMPLES.iter().chain(&BF16_ONLY_SAMPLES).map(|bits| u64::from(*bits)).collect(),
        DType::F16 => F16_SAMPLES.iter().map(|bits| u64::from(*bits)).collect(),
        _ => {
            let bits = |part: f32| u64::from(part.to_bits());
            COMPLEX_PARTS
                .iter()
                .flat_map(|re| COMPLEX_PARTS.iter().map(move |im| bits(*re) | bits(*im) << 32))
                .collect()
        }
    };
    let all = elements.iter().flat_map(|first| elements.iter().map(move |second| (*first, *second)));
    let (first, second): (Vec<u64>, Vec<u64>) = all.unzip();
    (packed(&first, dtype.size()), packed(&second, dtype.size()))
}

/// Packs elements of `bytes` bytes, each in the low bytes of a word, without gaps. The packed elements fill
/// whole words.
fn packed(elements: &[u64], bytes: usize) -> Vec<u64> {
    let side_by_side: Vec<u8> = elements.iter().flat_map(|e| e.to_ne_bytes()[..bytes].to_vec()).collect();
    let words = side_by_side.chunks_exact(size_of::<u64>());
    words.map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use objects::samples::handle;

    /// Defines a function as MLX does: a loop over single elements.
    macro_rules! function {
        ($name:ident, $t:ty, |$in:ident, $acc:ident| $result:expr) => {
            unsafe extern "C-unwind" fn $name(a: *mut c_void, b: *mut c_void, n: *mut c_int, _: *mut Handle) {
                // SAFETY: the contract of `UserFunction`.
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
        let complex = Datatype::Builtin(DType::Complex64);
        let two = Datatype::Derived(2);
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
            let user_op = UserOp::new(function);
            for _ in 0..2 {
                assert_eq!(
                    user_op.kernel(datatype, std::ptr::null_mut()),
                    Some((dtype, op)),
                    "function {at}"
                );
            }
        }
    }

    #[test]
    fn a_function_that_is_none_of_our_kernels_is_not_taken_for_one() {
        let complex = Datatype::Builtin(DType::Complex64);
        for (function, datatype) in [
            (product as UserFunction, Datatype::Derived(2)),
            (by_real_part, complex),
            (sum_f16, Datatype::Derived(4)),
        ] {
            assert_eq!(UserOp::new(function).kernel(datatype, std::ptr::null_mut()), None);
        }
    }

    #[test]
    fn handles_lead_to_what_they_were_given_for() {
        let made = create(max_f16).expect("an operation");
        assert!(matches!(Operation::from_handle(made), Ok(Operation::User(_))));
        let sum = handle(|objects| objects.ompi_mpi_op_sum);
        assert!(matches!(Operation::from_handle(sum), Ok(Operation::Builtin(ReduceOp::Sum))));
        let float = handle(|objects| objects.ompi_mpi_float) as usize;
        for number in [0, FIRST_HANDLE + MAX_USER_OPS, usize::MAX, float] {
            Operation::from_handle(std::ptr::without_provenance_mut(number)).expect_err("not an operation");
        }
    }
}
