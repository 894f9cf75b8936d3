// The results of `normgrad bench` as a web page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace normgrad::tool {

// One page that needs nothing else, neither files nor a network. `results` is the document that
// --json writes; the page carries it and draws everything from it when it is opened.
std::string html_report(const nlohmann::json& results);

}  // namespace normgrad::tool
