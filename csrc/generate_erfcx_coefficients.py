"""Fits the polynomials behind `scalar_math.h` and writes `erfcx_coefficients.h`.

With t = kappa / (kappa + b), the scaled complementary error function erfcx(b) on b >= b_min is a smooth function F
of t on (0, t_max]. One polynomial for all of it is what makes divided differences of erfcx free of cancellation
(docs/derivation.md). A second polynomial gives -erfcx'(b) = t^2 Y(t). Both are written in powers of t - 1/2: there
Horner's sum has a condition number of 1.03, in powers of t it has 30.

    python csrc/generate_erfcx_coefficients.py > csrc/erfcx_coefficients.h

Needs mpmath; not part of the build.
"""

import mpmath as mp

mp.mp.dps = 60

# Smallest erfcx argument the kernels evaluate: -sqrt(2) times SMALL_STD of moments_math.h.
B_MIN = -mp.sqrt(2) / 2
CENTRE = mp.mpf(1) / 2
# kind -> (C++ type, literal suffix, kappa, degree of F, degree of Y)
KINDS = (("float", "f", 4, 12, 10), ("double", "", 4, 24, 23))


def erfcx(b):
    """erfcx at 60 digits, by the asymptotic series where erfc underflows."""
    if b < 40:
        return mp.exp(b * b) * mp.erfc(b)
    return mp.hyp2f0(1, mp.mpf(1) / 2, -1 / (b * b)) / (b * mp.sqrt(mp.pi))


def minus_erfcx_derivative(b):
    """-erfcx'(b) = 2 / sqrt(pi) - 2 b erfcx(b), by its asymptotic series where that cancels."""
    if b < 40:
        return 2 / mp.sqrt(mp.pi) - 2 * b * erfcx(b)
    return -2 / mp.sqrt(mp.pi) * (mp.hyp2f0(1, mp.mpf(1) / 2, -1 / (b * b)) - 1)


def interpolate(function, t_max, terms):
    """Monomial coefficients of the polynomial through Chebyshev nodes of (0, t_max]: near-minimax."""
    nodes = [t_max / 2 * (1 + mp.cos(mp.pi * (2 * i + 1) / (2 * terms))) for i in range(terms)]
    vandermonde = mp.matrix(terms, terms)
    for row, t in enumerate(nodes):
        for column in range(terms):
            vandermonde[row, column] = t**column
    return list(mp.lu_solve(vandermonde, mp.matrix([function(t) for t in nodes])))


def recentre(coefficients):
    """The same polynomial in powers of t - CENTRE."""
    count = len(coefficients)
    return [sum(coefficients[k] * mp.binomial(k, j) * CENTRE ** (k - j) for k in range(j, count)) for j in range(count)]


def emit(name, ctype, suffix, values):
    """One constant array, highest power first, as Horner reads it."""
    digits = 9 if suffix else 17
    literals = ",\n    ".join(mp.nstr(value, digits, min_fixed=0, max_fixed=0) + suffix for value in reversed(values))
    print(f"P3_CONSTANT {ctype} {name}[{len(values)}] = {{\n    {literals}}};")


def main():
    """Writes the header to standard output."""
    print("// Written by generate_erfcx_coefficients.py; do not edit.")
    print("// In powers of t - 1/2, highest first: erfcx(b) = F(t), -erfcx'(b) = t^2 Y(t), t = kappa / (kappa + b).")
    for ctype, suffix, kappa_value, degree, slope_degree in KINDS:
        kappa = mp.mpf(kappa_value)
        t_max = kappa / (kappa + B_MIN)
        print(f"P3_CONSTANT {ctype} kErfcxKappa_{ctype} = {mp.nstr(kappa, 3)}{suffix};")
        # Fitted as t times a polynomial, so that F(0) = 0 as it must be.
        over_t = interpolate(lambda t, k=kappa: erfcx(k / t - k) / t, t_max, degree)
        emit(f"kErfcxValue_{ctype}", ctype, suffix, recentre([mp.mpf(0), *over_t]))
        # Only needed at b >= 0, that is t <= 1.
        slope = interpolate(lambda t, k=kappa: minus_erfcx_derivative(k / t - k) / t**2, mp.mpf(1), slope_degree + 1)
        emit(f"kErfcxSlope_{ctype}", ctype, suffix, recentre(slope))


if __name__ == "__main__":
    main()
