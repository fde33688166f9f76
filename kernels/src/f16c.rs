//! Sums, products and means of f16 by x86's conversion instructions, which the compiler does not find by
//! itself.
//!
//! # Safety
//! Every kernel here is a [`ReduceFn`](super::ReduceFn), for machines with the features that it is compiled
//! for. All loads and stores are unaligned ones. A step loads both operands whole before it stores, so a
//! destination that equals an operand needs no care.

/// The three kernels over a module's `each`.
macro_rules! kernels {
    ($features:literal, $add:ident, $mul:ident, $div:ident, $splat:ident) => {
        /// The sum.
        #[target_feature(enable = $features)]
        pub(in super::super) unsafe fn add(dst: *mut u8, a: *const u8, b: *const u8, count: usize, _: u32) {
            // SAFETY: the caller's contract, passed on.
            unsafe { each(dst, a, b, count, |x, y| $add(x, y)) }
        }

        /// The product.
        #[target_feature(enable = $features)]
        pub(in super::super) unsafe fn mul(dst: *mut u8, a: *const u8, b: *const u8, count: usize, _: u32) {
            // SAFETY: the caller's contract, passed on.
            unsafe { each(dst, a, b, count, |x, y| $mul(x, y)) }
        }

        /// The mean.
        #[target_feature(enable = $features)]
        pub(in super::super) unsafe fn mean(
            dst: *mut u8,
            a: *const u8,
            b: *const u8,
            count: usize,
            divisor: u32,
        ) {
            let divisor = $splat(divisor.max(1) as f32);
            // SAFETY: the caller's contract, passed on.
            unsafe { each(dst, a, b, count, |x, y| $div($add(x, y), divisor)) }
        }
    };
}

/// Eight at a time, with AVX2 and F16C.
pub(super) mod wide256 {
    use std::arch::x86_64::*;

    kernels!("avx2,f16c", _mm256_add_ps, _mm256_mul_ps, _mm256_div_ps, _mm256_set1_ps);

    /// To f16, rounded to nearest even, with any NaN made the canonical one.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn narrow(value: __m256) -> __m128i {
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value);
        _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_blendv_ps(value, _mm256_set1_ps(f32::NAN), nan))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn each(
        dst: *mut u8,
        a: *const u8,
        b: *const u8,
        count: usize,
        combine: impl Fn(__m256, __m256) -> __m256,
    ) {
        let (dst, a, b) = (dst.cast::<u16>(), a.cast::<u16>(), b.cast::<u16>());
        let whole = count - count % 8;
        for i in (0..whole).step_by(8) {
            // SAFETY: elements i..i+8 are within the operands and the destination.
            unsafe {
                let x = _mm256_cvtph_ps(_mm_loadu_si128(a.add(i).cast()));
                let y = _mm256_cvtph_ps(_mm_loadu_si128(b.add(i).cast()));
                _mm_storeu_si128(dst.add(i).cast(), narrow(combine(x, y)));
            }
        }
        for i in whole..count {
            // SAFETY: element i is within the operands and the destination.
            unsafe {
                let x = _mm256_cvtph_ps(_mm_cvtsi32_si128(i32::from(*a.add(i))));
                let y = _mm256_cvtph_ps(_mm_cvtsi32_si128(i32::from(*b.add(i))));
                *dst.add(i) = _mm_cvtsi128_si32(narrow(combine(x, y))) as u16;
            }
        }
    }
}

/// Sixteen at a time, with AVX-512.
pub(super) mod wide512 {
    use std::arch::x86_64::*;

    kernels!("avx512f,avx512bw,avx512vl", _mm512_add_ps, _mm512_mul_ps, _mm512_div_ps, _mm512_set1_ps);

    /// To f16, rounded to nearest even, with any NaN made the canonical one.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn narrow(value: __m512) -> __m256i {
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
        _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_mask_blend_ps(
            nan,
            value,
            _mm512_set1_ps(f32::NAN),
        ))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn each(
        dst: *mut u8,
        a: *const u8,
        b: *const u8,
        count: usize,
        combine: impl Fn(__m512, __m512) -> __m512,
    ) {
        let (dst, a, b) = (dst.cast::<i16>(), a.cast::<i16>(), b.cast::<i16>());
        let whole = count - count % 16;
        for i in (0..whole).step_by(16) {
            // SAFETY: elements i..i+16 are within the operands and the destination.
            unsafe {
                let x = _mm512_cvtph_ps(_mm256_loadu_si256(a.add(i).cast()));
                let y = _mm512_cvtph_ps(_mm256_loadu_si256(b.add(i).cast()));
                _mm256_storeu_si256(dst.add(i).cast(), narrow(combine(x, y)));
            }
        }
        if whole < count {
            let rest = (1 << (count - whole)) - 1;
            // SAFETY: the mask leaves out every element that is not within the operands and the destination.
            unsafe {
                let x = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(rest, a.add(whole)));
                let y = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(rest, b.add(whole)));
                _mm256_mask_storeu_epi16(dst.add(whole), rest, narrow(combine(x, y)));
            }
        }
    }
}
