{{- define "penstock.name" -}}
{{- $name := contains "penstock" .Release.Name | ternary .Release.Name (printf "%s-penstock" .Release.Name) -}}
{{ $name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "penstock.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "penstock.name" .) }}
{{- end }}

{{/* The request topic, as the worker names it. */}}
{{- define "penstock.topic" -}}
{{- $name := regexReplaceAll "[^a-zA-Z0-9._-]" .Values.config.worker.served_name "-" -}}
{{ .Values.config.worker.topic | default (printf "penstock.requests.%s" $name) }}
{{- end }}

{{- define "penstock.group" -}}
{{ .Values.config.worker.group_id | default (printf "penstock.%s" .Values.config.worker.served_name) }}
{{- end }}

{{/* Fails where so many pods have more members than the topic has partitions. `name` is the value that gives `pods`. */}}
{{- define "penstock.checkMembers" -}}
{{- $members := mul .pods .root.Values.membersPerPod -}}
{{- $partitions := int .root.Values.config.worker.partitions -}}
{{- if gt (int $members) $partitions -}}
{{- fail (printf "%s %v with membersPerPod %v are %v members, more than config.worker.partitions %v: the others would be idle." .name .pods .root.Values.membersPerPod $members $partitions) -}}
{{- end -}}
{{- end }}
