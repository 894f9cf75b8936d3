// The object behind infinicclComm_t, and what its functions share.
#pragma once

#include <memory>
#include <string>

#include "error.hpp"
#include "infiniccl.h"
#include "normgrad/communicator.hpp"

// As InfiniCore has it: five members, of which the third is the engine's own.
struct InfinicclComm {
  infiniDevice_t device_type;
  int device_id;
  std::unique_ptr<normgrad::Communicator> engine;
  int rank;
  int world_size;
};

namespace normgrad::infini {

// Live communicators are in a set of pointers, so that one that is not can be refused without being
// read. An address that a later one got again passes for that one.
infiniStatus_t check(const char* function, infinicclComm_t comm) noexcept;

// The status and sentence of the library in this dialect.
infiniStatus_t answer(const char* function, const Status& status) noexcept;

// What every function on a communicator does. call: Status(const InfinicclComm&).
template <class Call>
infiniStatus_t on_communicator(const char* function, infinicclComm_t comm,
                               const Call& call) noexcept {
  if (infiniStatus_t status = check(function, comm)) return status;
  return guard([&] { return answer(function, call(static_cast<const InfinicclComm&>(*comm))); });
}

}  // namespace normgrad::infini
