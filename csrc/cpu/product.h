// Products of matrices of one instruction set; see kernels.h. Compiled in a unit of its own, isa_products.cpp.
#pragma once

#include "kernels.h"

namespace p3 {
namespace P3_ISA {

template <class S>
void product(Matrix<const S> a, Matrix<const S> b, const S* bias, bool add, S* c, int64_t c_stride, int64_t rows,
             int64_t columns, int64_t inner);

}  // namespace P3_ISA
}  // namespace p3
