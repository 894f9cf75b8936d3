#include "report.hpp"

#include <nlohmann/json.hpp>
#include <string_view>

namespace normgrad::tool {
namespace {

constexpr std::string_view kPage =
#include "report.html.inc"
    ;
constexpr std::string_view kStyle =
#include "report.css.inc"
    ;
constexpr std::string_view kScripts[] = {
#include "report_data.js.inc"
    ,
#include "report_pictures.js.inc"
    ,
#include "report.js.inc"
};

void replace(std::string& page, std::string_view marker, std::string_view text) {
  page.replace(page.find(marker), marker.size(), text);
}

// In a <script> element only "</script" and "<!--" mean something, and in JSON a "<" stands inside
// strings only, where it may be written as an escape. Bytes that are not UTF-8 (the name of a
// machine may have them) become U+FFFD.
std::string embeddable(const nlohmann::json& results) {
  const std::string text = results.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      escaped += "\\u003c";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace

std::string html_report(const nlohmann::json& results) {
  std::string page(kPage);
  replace(page, "{{style}}", kStyle);
  std::string script;
  for (const std::string_view part : kScripts) script += part;
  replace(page, "{{script}}", script);
  replace(page, "{{results}}", embeddable(results));  // last: its strings may look like markers
  return page;
}

}  // namespace normgrad::tool
