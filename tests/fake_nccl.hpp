// An NCCL without GPUs, for what a GPU alone cannot show: ranks that stall, errors that come later,
// several devices. It moves nothing; it notes the calls and answers as it is told.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace fake_nccl {

struct Script {
  std::vector<std::string> calls;  // since the test began, but for the polls
  int polls = 0;                   // how often a communicator is still in progress; -1: always
  int later = 0;                   // what a communicator then is: 0 or an error of NCCL's
  int at_once = 0;                 // what calls answer if not 0
  const char* where = "";          // the only call that does so; "": all that could
  std::chrono::milliseconds abort_for{};
};
extern Script script;

}  // namespace fake_nccl
