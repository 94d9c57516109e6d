from observers.rollup import Rollup as Rollup
