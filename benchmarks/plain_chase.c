/* A plain pointer chase to compare ours with: the same cycle from the same seed, one thread, huge pages.
 *
 *   gcc -O2 plain_chase.c -o plain_chase                    a process with its own memory
 *   gcc -O2 -shared -fPIC plain_chase.c -o plain_chase.so   plain_walk() along a cycle that lies there
 *   plain_chase CPU BYTES SEED
 *
 * Prints the bytes that the kernel says are of huge pages. Then each line that comes in is a number of steps, and
 * is answered by the seconds that they took and the place where they ended, in bytes from the start. One walk
 * begins where the one before ended.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BLOCK 256
#define HUGE_PAGE (2UL << 20)

static uint64_t state;

static uint64_t below(uint64_t bound) {
  uint64_t z = state += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z ^= z >> 31;
  return (uint64_t)(((unsigned __int128)z * bound) >> 64);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Follows `steps` pointers from `*at`, leaves there where it ended, and returns the seconds. */
double plain_walk(void** at, uint64_t steps) {
  void* volatile* place = *at;
  const double begun = seconds();
  for (uint64_t i = 0; i < steps; i++) place = (void* volatile*)*place;
  const double taken = seconds() - begun;
  *at = (void*)place;
  return taken;
}

int main(int count, char** argument) {
  if (count != 4) return 2;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(atoi(argument[1]), &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) return perror("sched_setaffinity"), 1;
  const uint64_t bytes = strtoull(argument[2], NULL, 10), blocks = bytes / BLOCK;
  state = strtoull(argument[3], NULL, 10);
  if (blocks < 2) return 2;

  char* map = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return perror("mmap"), 1;
  char* start = (char*)(((uintptr_t)map + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
  madvise(start, bytes, MADV_HUGEPAGE);
  memset(start, 1, bytes);

  for (uint64_t i = 0; i < blocks; i++) *(char**)(start + i * BLOCK) = start + i * BLOCK;
  for (uint64_t i = blocks - 1; i > 0; i--) {
    char** a = (char**)(start + i * BLOCK);
    char** b = (char**)(start + below(i) * BLOCK);
    char* kept = *a;
    *a = *b;
    *b = kept;
  }

  char line[256];
  long huge = 0, found = 0;
  FILE* file = fopen("/proc/self/smaps_rollup", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "AnonHugePages: %ld", &found) == 1) huge = found;
  }
  printf("%ld\n", huge * 1024);
  fflush(stdout);

  void* at = start;
  while (fgets(line, sizeof line, stdin) != NULL) {
    const double taken = plain_walk(&at, strtoull(line, NULL, 10));
    printf("%.9f %llu\n", taken, (unsigned long long)((char*)at - start));
    fflush(stdout);
  }
  return 0;
}
