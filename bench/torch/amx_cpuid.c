// Preloaded into PyTorch where a virtual machine lets tiles through but hides CPUID's leaves about them (1Dh and 1Eh read as
// zeros). oneDNN takes the sizes of tiles from there and dies of its first tile instruction; with them it runs as on the bare
// machine. CPUID is made to fault (Linux, CPUs with cpuid_fault), and the handler answers for the two leaves.
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { kSetCpuid = 0x1012, kFaults = 0, kRuns = 1 };  // arch_prctl

static void answer(int signal_number, siginfo_t* info, void* context) {
  (void)info;
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const unsigned char* at = (const unsigned char*)registers[REG_RIP];
  if (at[0] != 0x0f || at[1] != 0xa2) {  // another fault: as without this handler
    signal(signal_number, SIG_DFL);
    return;
  }
  const unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX];
  unsigned a, b, c, d;
  syscall(SYS_arch_prctl, kSetCpuid, kRuns);
  __cpuid_count(leaf, part, a, b, c, d);
  syscall(SYS_arch_prctl, kSetCpuid, kFaults);
  if (leaf == 0x1d || leaf == 0x1e) a = b = c = d = 0;
  if (leaf == 0x1d && part == 0) a = 1;  // palettes
  if (leaf == 0x1d && part == 1) {       // 8192 bytes in all, 1024 a tile; 64 a row, 8 tiles; 16 rows
    a = 1024u << 16 | 8192;
    b = 8u << 16 | 64;
    c = 16;
  }
  if (leaf == 0x1e && part == 0) b = 64u << 8 | 16;  // bytes of k, rows
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
  unsetenv("LD_PRELOAD");  // a compiler that torch.compile starts has a handler of its own
  unsigned a, b, c, d;
  __cpuid_count(7, 0, a, b, c, d);
  const int has_tiles = d >> 24 & 1;
  __cpuid_count(0x1d, 1, a, b, c, d);
  if (!has_tiles || b != 0) return;  // nothing to answer for, or it is there
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, NULL);
  syscall(SYS_arch_prctl, kSetCpuid, kFaults);
}
