#!/usr/bin/env python3
"""Fits the polynomial of exp_f32 (src/base/functions.h): weighted minimax by Remez exchange, then rounded to float.

exp(r) = 1 + r + r^2 q(r) on |r| <= ln2/2, q of degree 4; the error is relative to exp(r).
Needs mpmath and numpy; prints the coefficients of q, lowest first, and the largest error with rounded ones.
"""

import mpmath as mp
import numpy as np

mp.mp.prec = 120
DEGREE = 4
HALF = mp.log(2) / 2 * mp.mpf("1.0001")


def target(r):
    if abs(r) < mp.mpf("1e-8"):
        return mp.mpf(1) / 2 + r / 6
    return (mp.exp(r) - 1 - r) / r**2


def weight(r):
    return r**2 / mp.exp(r)


def error(coefficients, r):
    return weight(r) * (mp.polyval(coefficients[::-1], r) - target(r))


def remez():
    # Zero weight at r = 0 splits the interval: odd starting nodes stay away from it.
    n = DEGREE + 2
    nodes = [HALF * mp.cos(mp.pi * (i + mp.mpf("0.5")) / n) for i in range(n)]
    grid = [HALF * (mp.mpf(2 * i) / 4000 - 1) for i in range(4001)]
    for _ in range(30):
        rows, values = mp.matrix(n, n), mp.matrix(n, 1)
        for i, r in enumerate(nodes):
            for j in range(DEGREE + 1):
                rows[i, j] = r**j
            rows[i, DEGREE + 1] = (-1) ** i / weight(r)
            values[i] = target(r)
        solution = mp.lu_solve(rows, values)
        coefficients = [solution[i] for i in range(DEGREE + 1)]
        errors = [error(coefficients, r) for r in grid]
        # One extremum per run of equal sign, then the n largest neighbours that alternate.
        peaks, best = [], 0
        for i in range(1, len(grid)):
            if errors[i] * errors[best] < 0:
                peaks.append(best)
                best = i
            elif abs(errors[i]) > abs(errors[best]):
                best = i
        peaks.append(best)
        while len(peaks) > n:
            peaks.remove(min((peaks[0], peaks[-1]), key=lambda i: abs(errors[i])))
        if len(peaks) < n:
            break
        moved = [grid[i] for i in reversed(peaks)]
        if max(abs(a - b) for a, b in zip(nodes, moved)) < HALF / 3000:
            break
        nodes = moved
    return coefficients, grid


def main():
    coefficients, grid = remez()
    rounded = [np.float32(float(c)) for c in coefficients]
    exact = [mp.mpf(float(c)) for c in rounded]
    for power, c in enumerate(rounded):
        print(f"r^{power + 2}: {float(c).hex()}")
    worst = max(abs(error(exact, r)) for r in grid)
    print(f"largest relative error: {mp.nstr(worst, 3)} (one float ulp is 1.19e-7)")


if __name__ == "__main__":
    main()
