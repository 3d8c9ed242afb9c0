// The clock that a core achieves, told by work whose cycles are known.
#pragma once

namespace k3gate {

// Hertz, right now, on the CPU of the caller; 0 where no instruction's cycles are known. Takes about a tenth
// of a millisecond, well within the time for which a core keeps the clock of the work before.
double achieved_clock();

}  // namespace k3gate
