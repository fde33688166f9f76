//! The Rust type of an element type.

/// Evaluates an expression with `$element` as the Rust type of an element type.
#[macro_export]
#[doc(hidden)]
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        $crate::with_element!($dtype, $element, $body,
            F32 f32, F64 f64, F16 half::f16, Bf16 half::bf16, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8,
            U16 u16, U32 u32, U64 u64, Bool bool, Complex64 num_complex::Complex32)
    };
    ($dtype:expr, $element:ident, $body:expr, $($dt:ident $rust:ty),*) => {
        match $dtype {
            $(tbccl::DType::$dt => {
                type $element = $rust;
                $body
            })*
        }
    };
}
